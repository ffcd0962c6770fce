"""Charges of policies of several limits: settled or cancelled once, by any node."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from penstock import ConfigInvalidError, ManualClock
from penstock.config import parse_policies
from penstock.service._charge_records import LONGEST_MS, SHORTEST_MS
from penstock.service._charges import charge_id, read_charge_id
from penstock.service._core import Service, build_service
from penstock.stores.memory import MemoryStore
from tests.support.helpers import NOW

from .several import FILE, judged, serving


@pytest.fixture
def service() -> Service:
    return serving()


def test_a_charge_is_settled_once_by_any_node(nodes: tuple[Service, Service, Any]) -> None:
    """What was too much comes back on each limit; whoever comes second changes nothing."""
    one, other, run = nodes
    told = {"user": "u", "tokens": 900}
    charge = run(one.reserve("api", attributes=told))
    assert charge.answer.verdict.limits["tokens"].remaining == 100
    assert run(other.settle(charge.charge_id, {"tokens": 250}))
    assert not run(one.settle(charge.charge_id, {"tokens": 0}))
    assert not run(one.cancel(charge.charge_id))
    left = run(one.peek_all("api", {"user": "u", "tokens": 0})).verdict
    assert left.limits["tokens"].remaining == 750
    assert left.limits["user"].remaining == 2


def test_cancelling_gives_everything_back(nodes: tuple[Service, Service, Any]) -> None:
    """Plans included, whose figures are found again by the id."""
    one, other, run = nodes
    charge = run(one.reserve("api", attributes={"user": "u", "plan": "pro"}, cost=7))
    assert run(other.cancel(charge.charge_id))
    assert (
        run(one.peek_all("api", {"user": "u", "plan": "pro"})).verdict.limits["user"].remaining
        == 10
    )


def test_a_charge_from_before_a_reset_refunds_nothing(service: Service) -> None:
    """Neither one of several limits nor one of a policy with a single limit."""
    run = asyncio.run
    old = run(service.reserve("api", attributes={"user": "u", "tokens": 900}))
    run(service.reset("api", attributes={"user": "u"}))
    assert run(service.reserve("api", attributes={"user": "u", "tokens": 900})).answer.verdict
    assert run(service.cancel(old.charge_id))
    left = run(service.peek_all("api", {"user": "u", "tokens": 0})).verdict
    assert left.limits["tokens"].remaining == 100
    old = run(service.reserve("one", "k", cost=1))
    run(service.reset("one", "k"))
    before = run(service.reserve("one", "k", cost=1)).answer.remaining
    assert run(service.cancel(old.charge_id))
    assert run(service.peek("one", "k")).remaining == before


@pytest.mark.parametrize("used", [None, {"user": 0}, {"user": 0, "all": 0}])
def test_what_a_shadow_did_not_take_does_not_come_back(
    nodes: tuple[Service, Service, Any], used: dict[str, int] | None
) -> None:
    """Whoever settles the charge, and whatever of it is named."""
    one, other, run = nodes
    for user in "abc":
        run(one.reserve("tight", attributes={"user": user}))
    charge = run(one.reserve("tight", attributes={"user": "d"}))
    assert charge.answer.verdict.shadowed == ("all",)
    settle = other.cancel if used is None else partial(other.settle, actual=used)
    assert run(settle(charge.charge_id))
    left = run(one.peek_all("tight", {"user": "d"})).verdict.limits
    assert (left["user"].remaining, left["all"].remaining) == (3, 0)


def test_a_policy_of_one_limit_reserves_too(nodes: tuple[Service, Service, Any]) -> None:
    one, other, run = nodes
    charge = run(one.reserve("one", key="k", cost=2))
    assert charge.allowed
    denied = run(one.reserve("one", key="k"))
    assert not denied.allowed
    assert denied.charge_id == ""
    assert run(other.settle(charge.charge_id, 1))
    assert run(one.peek("one", "k")).remaining == 1


def test_a_crowd_settles_a_charge_exactly_once(nodes: tuple[Service, Service, Any]) -> None:
    """Twenty at once, on both nodes."""
    one, other, run = nodes

    async def main() -> list[bool]:
        charge = await one.reserve("api", attributes={"user": "u", "tokens": 1000})
        calls = [node.cancel(charge.charge_id) for node in (one, other) for _ in range(10)]
        return list(await asyncio.gather(*calls))

    assert sum(run(main())) == 1
    assert (
        run(one.peek_all("api", {"user": "u", "tokens": 0})).verdict.limits["tokens"].remaining
        == 1000
    )


def test_slots_are_held_by_a_charge_renewed_and_given_back(
    nodes: tuple[Service, Service, Any],
) -> None:
    one, other, run = nodes
    charge = run(one.reserve("key", key="k"))
    assert run(other.reserve("key", key="k")).answer.verdict.violated == ("flight",)
    assert run(other.renew(charge.charge_id))
    assert run(other.settle(charge.charge_id, {}))
    assert not run(one.renew(charge.charge_id))
    assert run(other.reserve("key", key="k")).allowed


def test_units_may_be_booked_ahead(nodes: tuple[Service, Service, Any]) -> None:
    """The limit with a pace tells when; cancelling the last booking gives it back."""
    one, other, run = nodes
    first = run(one.reserve("pace", attributes={"user": "u"}, max_wait_ms=5_000))
    second = run(other.reserve("pace", attributes={"user": "u"}, max_wait_ms=5_000))
    third = run(one.reserve("pace", attributes={"user": "u"}, max_wait_ms=5_000))
    assert 900 <= second.starts_at - first.starts_at <= 1_100
    assert 900 <= third.starts_at - second.starts_at <= 1_100
    assert run(other.cancel(third.charge_id))
    again = run(one.reserve("pace", attributes={"user": "u"}, max_wait_ms=5_000))
    assert abs(again.starts_at - third.starts_at) <= 100
    assert run(one.peek_all("pace", {"user": "u"})).verdict.limits["day"].remaining == 2


def test_an_id_that_was_altered_is_refused_and_gives_nothing_back(
    nodes: tuple[Service, Service, Any],
) -> None:
    """In whatever place: the units, the key, what was booked ahead, the seal."""
    one, other, run = nodes
    made = run(one.reserve("pace", attributes={"user": "u"}, max_wait_ms=5_000)).charge_id
    text, _, seal = made.rpartition(".")
    terms = read_charge_id(text)
    held = terms.held[0]
    altered = [
        charge_id(terms._replace(held=(held._replace(units=2), *terms.held[1:]))),
        charge_id(terms._replace(held=(held._replace(key="other"), *terms.held[1:]))),
        charge_id(terms._replace(plan="pro")),
        charge_id(terms._replace(offsets_ms=(86_400_000,) * len(terms.held))),
        f"{text}.{'-'.join(['x'] * len(terms.held))}",
    ]
    wrong = [f"{each}.{seal}" for each in altered]
    wrong += [f"{text}.{'0' * len(seal)}", f"{text}.", text, f"{made}0"]
    wrong += ["x", "é", "a" * 200_000, "WzFd", "WzFd.x", "."]
    for bad in wrong:
        for call in (other.cancel, partial(other.settle, actual=0), other.renew):
            with pytest.raises(ConfigInvalidError, match="charge id"):
                run(call(bad))
    assert run(one.peek_all("pace", {"user": "u"})).verdict.limits["day"].remaining == 4
    assert run(other.cancel(made))


def test_an_id_of_a_charge_that_was_never_made_settles_nothing(service: Service) -> None:
    made = asyncio.run(service.reserve("one", key="k")).charge_id
    text, _, seal = made.rpartition(".")
    other = charge_id(read_charge_id(text)._replace(nonce="0" * 24))
    assert asyncio.run(service.cancel(f"{other}.{seal}")) is False
    assert asyncio.run(service.settle(f"{other}.{seal}", 0)) is False
    assert asyncio.run(service.peek("one", "k")).remaining == 1


DAY = """
version: 1
limiters:
  short: {strategy: fixedWindow, limit: 3, window: 1m}
  long: {strategy: fixedWindow, limit: 3, window: 12h, anchor: first}
  longest: {strategy: fixedWindow, limit: 3, window: 30d, anchor: first}
"""


@pytest.mark.parametrize(
    ("policy", "life_ms"),
    [("short", SHORTEST_MS), ("long", 12 * SHORTEST_MS), ("longest", LONGEST_MS)],
)
def test_a_charge_can_be_settled_for_as_long_as_its_limit_counts_an_hour_at_least_a_day_at_most(
    policy: str, life_ms: int
) -> None:
    clock = ManualClock(NOW)
    service = serving(clock=clock, file=DAY)

    async def main() -> None:
        late, in_time = [(await service.reserve(policy, "k")).charge_id for _ in range(2)]
        clock.advance(life_ms - 1)
        assert await service.settle(in_time, 1)
        clock.advance(1)
        assert not await service.settle(late, 0)
        assert not await service.cancel(late)
        assert not await service.renew(late)

    asyncio.run(main())


def test_what_a_denied_caller_holds_settles_nothing(service: Service) -> None:
    assert asyncio.run(service.settle("", 3)) is False
    assert asyncio.run(service.cancel("")) is False


@pytest.mark.parametrize(
    ("told", "now"),
    [("1000, window: 1m", "1000, window: 1h"), ("{by: user, cost", "{by: tenant, cost")],
)
@pytest.mark.parametrize("actual", [None, {"tokens": 0, "user": 0}])
def test_a_charge_is_not_given_back_where_others_have_been_counted_since(
    told: str, now: str, actual: dict[str, int] | None
) -> None:
    """After a reload that lets counts start afresh: what it took of them is gone, and its other
    limits are settled."""
    service = serving()

    async def main() -> None:
        charge = await service.reserve("api", attributes={"user": "u", "tokens": 900})
        service.apply(parse_policies(FILE.replace(told, now), "p.yaml"))
        attributes = {"user": "u", "tenant": "u", "tokens": 600}
        judged(service, **attributes)
        settle = service.cancel if actual is None else partial(service.settle, actual=actual)
        assert await settle(charge.charge_id)
        left = (await service.peek_all("api", attributes)).verdict.limits
        assert (left["tokens"].remaining, left["user"].remaining) == (400, 2)

    asyncio.run(main())


@pytest.mark.parametrize(
    "strategy", ["gcra, limit: 10, period: 1s", "tokenBucket, capacity: 10, refillPerSec: 10"]
)
def test_old_reservations_that_are_cancelled_together_free_nothing(strategy: str) -> None:
    """What time has replenished does not come back, by a policy of one limit or of several."""
    clock = ManualClock(NOW)
    text = f"""\
version: 1
limiters:
  one: {{strategy: {strategy}}}
  several: {{limits: {{each: {{by: key, strategy: {strategy}}}}}}}
"""
    service = build_service(parse_policies(text, "p.yaml"), store=MemoryStore(), clock=clock)

    async def used(policy: str) -> int:
        ids = []
        for _ in range(30):
            ids.append((await service.reserve(policy, "k", cost=10)).charge_id)
            clock.advance(1_000)
        assert all(ids)
        count = 0
        for each in (*ids, None):
            while (await service.reserve(policy, "k")).allowed:
                count += 1
            if each is not None:
                assert await service.cancel(each)
        return count

    for policy in ("one", "several"):
        assert asyncio.run(used(policy)) == 10


def test_a_recent_reservation_is_cancelled_in_part_by_any_node() -> None:
    """The id says when its units are replenished."""
    clock = ManualClock(NOW)
    text = "version: 1\nlimiters:\n  pace: {strategy: gcra, limit: 10, period: 1s}\n"
    store = MemoryStore()
    one, other = (
        build_service(parse_policies(text, "p.yaml"), store=store, clock=clock) for _ in range(2)
    )

    async def left() -> int:
        charge = await one.reserve("pace", "k", cost=4)
        clock.advance(200)
        await one.reserve("pace", "k", cost=8)
        assert await other.cancel(charge.charge_id)
        return (await one.peek("pace", "k")).remaining

    assert asyncio.run(left()) == 2
