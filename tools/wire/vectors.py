"""Golden vectors: scripted requests, and what the oracle answers to them.

A suite is one key of one strategy, from cold, through a list of requests at given instants. The
scripts below go where implementations part: a cold burst and its end, state that is not whole,
costs above 1 and above the ceiling, the edge of a window to the millisecond, a clock that goes
back, instants of 13 digits and of 1, and operands for which another order of operations, or a digit
less in the stored text, gives another answer. The answers come from running the strategy and are
written nowhere by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.core._lua import REPLY
from penstock.core._register import find_strategy
from penstock.core._strategy import Strategy, camel_case
from penstock.core._validation import MAX_INSTANT_MS, MAX_SAFE

from .convert import decision_fields, strategy_of
from .manifest import CONTRACT_VERSION, published

__all__ = ["SUITES", "Suite", "golden_vectors"]

Request = tuple[int, int]

# 2023-11-14 22:13:20 UTC: 13 digits, and no multiple of a minute.
_EPOCH = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    kind: str
    options: dict[str, Any]
    requests: tuple[Request, ...]


def golden_vectors() -> dict[str, Any]:
    return {
        "contractVersion": CONTRACT_VERSION,
        "decisionFields": list(REPLY),
        "suites": [_answered(suite) for suite in SUITES],
    }


def _answered(suite: Suite) -> dict[str, Any]:
    strategy = strategy_of(suite.kind, suite.options)
    return {
        "primitive": "rate",
        "name": suite.name,
        "strategy": {"kind": suite.kind, "options": suite.options},
        "key": suite.name,
        "ops": list(_run(strategy, suite.requests)),
    }


def _run(strategy: Strategy, requests: tuple[Request, ...]) -> Iterator[dict[str, Any]]:
    state = None
    for now, cost in requests:
        outcome = strategy.check(state, now, cost)
        if outcome.persist:
            state = outcome.state
        yield {"now": now, "cost": cost, "expect": decision_fields(outcome.result)}


def _at(base: int, *requests: int | Request) -> tuple[Request, ...]:
    """Requests at `base` plus an offset; an offset alone has a cost of 1."""
    pairs = ((item, 1) if isinstance(item, int) else item for item in requests)
    return tuple((base + offset, cost) for offset, cost in pairs)


def _common(kind: str, limit: int, options: dict[str, Any]) -> Iterator[Suite]:
    """What every strategy goes through: `options` must give `limit` per 1000 ms."""

    def suite(name: str, requests: tuple[Request, ...]) -> Suite:
        return Suite(f"{kind}/{name}", kind, options, requests)

    burst = [0] * (limit + 2)
    spent = (0, limit)
    yield suite("cold-burst-and-exhaustion", _at(_EPOCH, *burst, 1, 2, 199, 200, 201, 999, 1000))
    yield suite("early-epoch", _at(1, *burst, 500, 998, 999, 1000, 1001, 2500))
    yield suite("cost-above-one", _at(_EPOCH, (0, 2), (10, 3), (20, 2), (700, 2), (1500, 3)))
    above = ((0, limit + 1), (0, MAX_SAFE), (1, 1), (2, limit), (2, MAX_SAFE))
    yield suite("cost-above-the-ceiling", _at(_EPOCH, *above))
    yield suite("rollover", _at(_EPOCH, spent, 998, 999, 1000, 1001, 1999, 2000, (5000, limit)))
    yield suite(
        "long-idle", _at(_EPOCH, spent, 1, (86_400_000, limit), 86_400_000, (10**9, limit), 10**9)
    )
    yield suite(
        "backward-jump",
        _at(_EPOCH, (0, 3), -1, -5000, -5000, -5000, -999, 0, 1, 1000, -10_000, 2000, 2001),
    )
    yield suite(
        "backward-jump-when-spent",
        _at(_EPOCH, spent, -60_000, (-1, limit), 0, 999, 1000, 1001, (-1, 1), (2500, limit)),
    )
    yield suite("latest-instant", _at(MAX_INSTANT_MS - 2500, *burst, 700, 1400, 2400, 2500))


def _gcra() -> Iterator[Suite]:
    def suite(name: str, options: dict[str, Any], *requests: int | Request) -> Suite:
        return Suite(f"gcra/{name}", "gcra", options, _at(_EPOCH, *requests))

    yield from _common("gcra", 5, {"limit": 5, "periodMs": 1000})
    thirds = {"limit": 3, "periodMs": 1000}
    yield suite("fractional-state", thirds, 0, 0, 0, 0, 333, 334, 667, 668, 1000, (1001, 2), 1335)
    sevenths = {"limit": 7, "periodMs": 1000, "burst": 2}
    yield suite("burst-below-limit", sevenths, 0, 0, 0, 142, 143, 286, (429, 2), (600, 3))
    yield suite("burst-above-limit", {"limit": 3, "periodMs": 700, "burst": 10}, (0, 10), 0, 234)
    yield suite("no-burst", {"limit": 10, "periodMs": 1000, "burst": 1}, 0, 0, 99, 100, 199, 200)
    fine = {"limit": 7001, "periodMs": 1000, "burst": 13}
    yield suite("less-than-a-millisecond", fine, (0, 12), 0, 0, 1, (1, 7), (2, 13), (3, 8))
    # Each differs if tau, the step of the TAT or what is left is computed in another order.
    yield suite("order-of-tau", {"limit": 3, "periodMs": 1001, "burst": 7}, (70, 3), 71, 1200)
    yield suite(
        "order-of-remaining", {"limit": 60, "periodMs": 100, "burst": 7}, 0, (0, 7), 1, (2, 6)
    )
    sixth = {"limit": 60, "periodMs": 10_000, "burst": 7}
    yield Suite("gcra/order-of-the-step", "gcra", sixth, _at(1, (0, 7), 0, 166, 167, (1168, 7)))
    yield from _gcra_exact()


def _gcra_exact() -> Iterator[Suite]:
    """Limits that do not divide their period: the burst to the unit, in one portion or several,
    and all of it again one period later. At the scale of the present, across 2**41 ms, where the
    grid of doubles widens in the year 2039, and at the end of the range in which sums are exact."""
    portions = {
        (7, 1_000): [1] * 7,
        (9, 60_000): [2, 3, 1, 3],
        (1_013, 1_000): [1_000, 12, 1],
        (5_000, 1_000): [4_999, 1],
        (10_000, 1_000): [3_333, 3_333, 3_333, 1],
        (7_919, 86_400_000): [1, 7_917, 1],
    }
    eras = {"": _EPOCH + 123, "/2039": 2**41 - 3, "/2109": 2**42 - 172_800_000}
    for (limit, period_ms), costs in portions.items():
        spent = [*((0, cost) for cost in costs), (0, 1)]
        again = [(period_ms, limit), (period_ms, 1)]
        for era, base in eras.items():
            yield Suite(
                f"gcra/exact-burst/{limit}-per-{period_ms}{era}",
                "gcra",
                {"limit": limit, "periodMs": period_ms},
                _at(base, *spent, *again),
            )


def _token_bucket() -> Iterator[Suite]:
    def suite(name: str, options: dict[str, Any], *requests: int | Request) -> Suite:
        return Suite(f"tokenBucket/{name}", "tokenBucket", options, _at(_EPOCH, *requests))

    yield from _common("tokenBucket", 5, {"capacity": 5, "refillPerSec": 5})
    tenth = {"capacity": 3, "refillPerSec": 0.1}
    yield suite("slow-refill", tenth, (0, 3), 1, 9999, 10_000, 10_001, 20_001, (45_000, 2), 60_000)
    third = {"capacity": 10, "refillPerSec": 1 / 3}
    yield suite("fractional-state", third, (0, 9), 100, 101, 202, 2999, 3100, (9000, 2), 9001)
    odd = {"capacity": 7, "refillPerSec": 2.7}
    yield suite("fractional-refill", odd, (0, 7), 7, 370, 371, 741, (1900, 3), (1901, 1), 2222)
    # Each differs if tokens are stored with 16 digits, or 15.
    tenth = {"capacity": 5, "refillPerSec": 0.1}
    yield suite("all-17-digits", tenth, 10, (11, 3), (11, 2), 10_011)
    third = {"capacity": 100, "refillPerSec": 1 / 3}
    yield suite("more-than-15-digits", third, (30, 3), (40, 3), 43, (44, 94))
    fast = {"capacity": 100, "refillPerSec": 12_345.678}
    yield suite("fast-refill", fast, (0, 100), (1, 12), (1, 1), (2, 13), (9, 90), (10, 90))


def _fixed_window() -> Iterator[Suite]:
    def suite(name: str, anchor: str, *requests: int | Request) -> Suite:
        options = {"limit": 4, "windowMs": 60_000, "anchor": anchor}
        return Suite(f"fixedWindow/{name}", "fixedWindow", options, _at(_EPOCH, *requests))

    for anchor in ("epoch", "first"):
        options = {"limit": 5, "windowMs": 1000, "anchor": anchor}
        for common in _common("fixedWindow", 5, options):
            yield Suite(f"{common.name}/{anchor}", common.kind, options, common.requests)
        # The minute turns 40 s after the epoch of these vectors.
        edge = ((0, 3), 39_999, 39_999, 40_000, (40_001, 3), 40_001, 59_999, 60_000, (100_000, 4))
        yield suite(f"across-the-minute/{anchor}", anchor, *edge)
        back = ((40_500, 4), 39_000, (-90_000, 1), 40_499, 99_999, 100_000, 100_500, 100_501)
        yield suite(f"back-across-the-minute/{anchor}", anchor, *back)


def _calendar_quota() -> Iterator[Suite]:
    hour, day = 3_600_000, 86_400_000

    def suite(name: str, base: int, terms: dict[str, Any], *requests: int | Request) -> Suite:
        options = {"limit": 5, **terms}
        return Suite(f"calendarQuota/{name}", "calendarQuota", options, _at(base, *requests))

    hourly = {"period": "hour"}
    end = hour - _EPOCH % hour
    spent = (0, 5)
    yield suite("cold-burst-and-exhaustion", _EPOCH, hourly, *[0] * 7, end - 1, end)
    yield suite("early-epoch", 1, {"period": "week", "timezone": "Asia/Tokyo"}, *[0] * 6, 4 * day)
    yield suite("cost-above-one", _EPOCH, hourly, (0, 2), (10, 3), (20, 2), (end, 2), (end, 4))
    yield suite("cost-above-the-ceiling", _EPOCH, hourly, (0, 6), (0, MAX_SAFE), (1, 1), (2, 5))
    yield suite("rollover", _EPOCH, hourly, spent, end - 1, (end, 5), end + hour - 1, end + hour)
    yield suite(
        "backward-jump", _EPOCH, hourly, (end, 3), 0, (-9 * hour, 2), -1, end, (end + hour, 5)
    )
    yield suite("latest-instant", MAX_INSTANT_MS - hour, {"period": "year"}, spent, hour)
    # 2024: the nights of 31 March and 27 October in Berlin, and the end of February.
    berlin = {"period": "day", "timezone": "Europe/Berlin"}
    yield suite("a-day-of-23-hours", 1_711_839_600_000, berlin, -1, spent, 23 * hour - 1, 23 * hour)
    yield suite("a-day-of-25-hours", 1_729_980_000_000, berlin, -1, spent, 25 * hour - 1, 25 * hour)
    last = {"period": "month", "startsOn": 31}
    yield suite("the-last-of-the-month", 1_709_164_800_000, last, -1, spent, 31 * day - 1, 31 * day)
    # 4 November 2018 began at one o'clock, and 30 December 2011 not at all.
    rio = {"period": "day", "timezone": "America/Sao_Paulo"}
    yield suite("a-midnight-left-out", 1_541_300_400_000, rio, -1, spent, 23 * hour - 1, 23 * hour)
    apia = {"period": "day", "timezone": "Pacific/Apia"}
    yield suite("a-day-left-out", 1_325_239_200_000, apia, -1, spent, day - 1, day)


def _sliding_window() -> Iterator[Suite]:
    for buckets in (1, 10):
        options = {"limit": 5, "windowMs": 1000, "buckets": buckets}
        for common in _common("slidingWindow", 5, options):
            yield Suite(f"{common.name}/{buckets}", common.kind, options, common.requests)
        spread = ((0, 30), (150, 30), (320, 39), 320, 321, 999, 1001, 1049, (1100, 30), (1101, 40))
        decay = ((1460, 40), (1777, 20), (1900, 7), (2050, 50), (2051, 50), 2052, (3999, 100))
        yield Suite(
            f"slidingWindow/partial-weight/{buckets}",
            "slidingWindow",
            {"limit": 100, "windowMs": 1000, "buckets": buckets},
            _at(_EPOCH, *spread, *decay),
        )
    third = ((0, 9), (333, 9), (334, 9), (667, 3), 668, 1000, 1001, (1200, 9), (1334, 12), 1700)
    yield Suite(
        "slidingWindow/fractional-tick",
        "slidingWindow",
        {"limit": 30, "windowMs": 1000, "buckets": 3},
        _at(_EPOCH, *third),
    )
    fine = ((0, 2), (3, 2), (4, 2), 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, (30, 7))
    yield Suite(
        "slidingWindow/tick-below-a-millisecond",
        "slidingWindow",
        {"limit": 7, "windowMs": 10, "buckets": 64},
        _at(_EPOCH, *fine),
    )


def _sliding_window_log() -> Iterator[Suite]:
    yield from _common("slidingWindowLog", 5, {"limit": 5, "windowMs": 1000})
    requests = ((0, 2), (100, 3), (100, 1), (101, 5), (101, 6), (250, 4), (251, 2), (1000, 3))
    yield Suite(
        "slidingWindowLog/waits-for-the-kth-unit",
        "slidingWindowLog",
        {"limit": 10, "windowMs": 1000},
        _at(_EPOCH, *requests, (1000, 6), (1001, 2), (1100, 4), 1100, (1250, 10), (3000, 10)),
    )


def _others(written: set[str]) -> Iterator[Suite]:
    """The common suites of those that have none of their own above."""
    for kind in {source.strategy: None for source in published()}:
        cls = find_strategy(kind)
        if kind not in written and cls is not None and cls.has_per():
            values = cls.per(5, 1_000).values
            yield from _common(kind, 5, {camel_case(name): values[name] for name in values})


_WRITTEN: tuple[Suite, ...] = (
    *_gcra(),
    *_token_bucket(),
    *_fixed_window(),
    *_calendar_quota(),
    *_sliding_window(),
    *_sliding_window_log(),
)
SUITES: tuple[Suite, ...] = (*_WRITTEN, *_others({suite.kind for suite in _WRITTEN}))
