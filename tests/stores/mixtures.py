"""Random requests of several steps, and what the oracle says to them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock import (
    Store,
    Strategy,
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.core._steps import Step, decide_all, looked_at
from penstock.core._transform import (
    Transform,
    booking,
    charging,
    checking,
    pausing,
    refunding,
    trying,
)

START = 1_700_000_000_000

STRATEGIES: dict[str, Strategy] = {
    "cell": gcra(7, 1_000),
    "burst": gcra(20, 60_000, burst=3),
    "bucket": token_bucket(5, 3.3),
    "slow": token_bucket(4, 0.7),
    "epoch": fixed_window(6, 1_000),
    "first": fixed_window(4, 700, anchor="first"),
    "hours": calendar_quota(5, "hour", "Asia/Kolkata"),
    "days": calendar_quota(9, "day", "America/New_York"),
    "ticks": sliding_window(6, 1_000),
    "halves": sliding_window(5, 900, buckets=2),
    "log": sliding_window_log(5, 1_000),
}


class OracleStore(Store):
    """The rule itself, on a dict."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[Any, int]] = {}

    def is_atomic(self, lead: str) -> bool:
        return True

    def apply_all(self, steps: Any, now: int) -> list[Any]:
        results, writes = decide_all(
            looked_at(steps), lambda key, _transform: self.state(key, now), lambda _key: now
        )
        for key, (_, outcome) in writes.items():
            if outcome.state is None:
                self.held.pop(key, None)
            else:
                self.held[key] = outcome.state, now + outcome.ttl_ms
        return results

    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        return self.apply_all([Step(key, transform, cost)], now)[0]

    def state(self, key: str, now: int) -> Any:
        state, expires = self.held.get(key, (None, 0))
        return state if now < expires else None


@dataclass
class Request:
    """One call of `apply_all`."""

    now: int
    steps: list[Step]

    def __repr__(self) -> str:
        steps = [
            f"{s.key}.{s.transform.role}({s.transform.argument}) cost={s.cost} shadow={s.shadow}"
            for s in self.steps
        ]
        return f"at {self.now - START}: " + "; ".join(steps)


def requests(
    seed: int,
    count: int,
    tenants: int = 2,
    names: tuple[str, ...] = tuple(STRATEGIES),
    scale: int = 1,
) -> Iterator[Request]:
    """A timeline that goes back now and then. At a `scale` of 1 it lasts for minutes, which suits
    windows of a second."""
    rng = random.Random(seed)
    now = START + rng.randrange(1_000_000)
    charged = [now]
    for _ in range(count):
        now += scale * rng.choice((0, 0, 1, 3, 20, 90, 130, 400, 1_100, -50, -700))
        chosen = rng.sample(names, rng.randint(1, min(4, len(names))))
        steps = [_step(rng, name, rng.randrange(tenants), now, charged, scale) for name in chosen]
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            # A key that is named again, for whatever else.
            again = _step(rng, chosen[0], 0, now, charged, scale)._replace(key=steps[0].key)
            steps.insert(rng.randint(0, len(steps)), again)
        charged.append(now)
        yield Request(now, steps)


def _step(
    rng: random.Random, name: str, tenant: int, now: int, charged: list[int], scale: int
) -> Step:
    strategy = STRATEGIES[name]
    transform: Transform[Any] = checking(strategy)
    role = rng.random()
    if role < 0.08:
        transform = charging(strategy)
    elif role < 0.2:
        transform = refunding(strategy, _counted_at(rng, charged[-5:]))
    elif role < 0.27 and strategy.window_kind is None:
        transform = booking(strategy, rng.choice((0, 200, 3_000)))
    elif role < 0.29:
        transform = pausing(strategy, now + scale * rng.randint(-100, 2_500))
    elif role < 0.33:
        transform = trying(checking(strategy))
    cost = rng.choice((1, 1, 1, 2, 3, 0)) if transform.role == "check" else rng.randint(1, 3)
    return Step(f"{name}:{tenant}", transform, cost, rng.random() < 0.2)


def _counted_at(rng: random.Random, charged: list[int]) -> int:
    """An instant by which a charge is refunded: that of the charge, or an earlier one if it left
    units over."""
    return rng.choice(charged) - rng.choice((0, 0, 0, 1, 140, 600, 950))


def requests_of_one_key(seed: int, count: int) -> Iterator[Request]:
    """Requests whose steps are all on one key, with refunds among them; another key every 25."""
    rng = random.Random(seed)
    for number in range(count // 25):
        name = rng.choice(list(STRATEGIES))
        now = START + rng.randrange(1_000_000)
        charged = [now]
        for _ in range(25):
            now += rng.choice((0, 0, 0, 1, 1, 3, 90, 400, 1_100, -50, -700))
            charged.append(now)
            steps = [_step(rng, name, number, now, charged, 1) for _ in range(rng.randint(1, 3))]
            for _ in range(rng.randint(0, 2)):
                refund = refunding(STRATEGIES[name], _counted_at(rng, charged[-4:]))
                step = Step(f"{name}:{number}", refund, rng.randint(1, 3), rng.random() < 0.3)
                steps.insert(rng.randint(0, len(steps)), step)
            yield Request(now, steps)


def follow(store: Store, timeline: Iterator[Request], prefix: str = "") -> tuple[int, int]:
    """Send every request to the store and to the oracle. Returns how many were admitted, denied."""
    oracle = OracleStore()
    admitted = denied = 0
    for number, request in enumerate(timeline):
        steps = [step._replace(key=prefix + step.key) for step in request.steps]
        expected = oracle.apply_all(steps, request.now)
        found = store.apply_all(steps, request.now)
        assert found == expected, f"request {number}, {request}"
        if all(
            s.shadow or s.transform.admits(r)
            for s, r in zip(looked_at(steps), expected, strict=True)
        ):
            admitted += 1
        else:
            denied += 1
    return admitted, denied
