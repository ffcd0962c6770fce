"""Quotas by the calendar on real servers: by the caller's clock, and by the server's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import ManualClock, Strategy, calendar_quota, gcra
from penstock.core._accelerator import PeriodAccelerator
from penstock.core._steps import Step
from penstock.core._transform import charging, checking, pausing, peeking, refunding
from penstock.stores.redis import RedisStore
from tests.servers import RedisServer
from tests.stores.mixtures import START, STRATEGIES, OracleStore, follow, requests
from tests.stores.redis.live import PATIENT_MS, new_key, open_empty

HOUR, DAY = 3_600_000, 86_400_000
CALENDAR = ("hours", "days")


@pytest.fixture(params=["valkey", "redis8", "cluster"])
def asked(request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    """By the caller's clock."""
    opened = open_empty(request.param)
    yield opened
    opened.close()


def server_ms(server: RedisServer) -> int:
    seconds, micros = server.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def seen_from(strategy: Strategy, now: int) -> None:
    """From here on, the strategy's caller has a clock that shows `now`."""
    assert isinstance(strategy.lua, PeriodAccelerator)
    strategy.lua._clock = ManualClock(now)  # type: ignore[assignment]


@pytest.mark.parametrize("seed", range(4))
def test_mixtures_with_quotas_are_decided_as_by_the_oracle(asked: RedisStore, seed: int) -> None:
    """Checks, looks, refunds, charges, pauses, over hours and days and back, one script for all."""
    names = (*CALENDAR, "cell", "epoch", "log")
    timeline = requests(seed, 300, names=names, scale=20_000)
    admitted, denied = follow(asked, timeline, f"{{{new_key()}}}")
    assert min(admitted, denied) > 20


@pytest.mark.parametrize("name", CALENDAR)
def test_single_operations_are_decided_as_by_the_oracle(asked: RedisStore, name: str) -> None:
    """One key at a time, by `apply`."""
    oracle, key = OracleStore(), new_key()
    for request in requests(7, 300, tenants=1, names=(name,), scale=20_000):
        for _, transform, cost, _ in request.steps:
            expected = oracle.apply(key, transform, request.now, cost or 1)
            assert asked.apply(key, transform, request.now, cost or 1) == expected
            look = peeking(STRATEGIES[name])
            expected = oracle.apply(key, look, request.now, 1)
            assert asked.apply(key, look, request.now, 1) == expected


def test_many_keys_of_a_quota_are_decided_at_one_instant(asked: RedisStore) -> None:
    """Across a boundary, all of them."""
    strategy = STRATEGIES["hours"]
    keys = [new_key() for _ in range(20)]
    for now in (START, START + HOUR):
        decisions = asked.apply_many([*keys, *keys], checking(strategy), now, 3)
        assert [decision.allowed for decision in decisions] == [True] * 20 + [False] * 20


@pytest.mark.parametrize("period", ["hour", "day", "week", "month", "year"])
def test_the_server_picks_the_period_by_its_own_clock(
    store: RedisStore, server: RedisServer, period: Any
) -> None:
    """Callers whose clocks are a period behind, right, or a period ahead share one count."""
    right = calendar_quota(30, period, "America/St_Johns")
    key, now = new_key(), server_ms(server)
    before, start, end, after = right.periods_at(now)
    others = {calendar_quota(30, period, "America/St_Johns"): at for at in (before, end)}
    spent = 0
    for strategy in (right, *others):
        if strategy in others:
            seen_from(strategy, others[strategy])
        for decision in (
            store.apply(key, checking(strategy), 0, 1),
            store.apply_many([key, new_key()], checking(strategy), 0, 1)[0],
            store.apply_all([Step(key, checking(strategy), 1)], 0)[0],
        ):
            spent += 1
            # The hour may turn while the test runs.
            assert decision.reset_at in (end, after)
            if decision.reset_at == end:
                assert decision.remaining == 30 - spent
    assert start <= now


@pytest.mark.parametrize("off_ms", [-400 * DAY, -3 * HOUR, 3 * HOUR, 400 * DAY])
def test_a_caller_whose_clock_is_far_off_looks_a_second_time(
    store: RedisStore, server: RedisServer, off_ms: int
) -> None:
    """And is charged once, in the server's period; after that it knows."""
    key, steps = new_key(), 0
    for operation in ("check", "many", "all", "charge"):
        strategy = calendar_quota(9, "hour")
        now = server_ms(server)
        end = strategy.periods_at(now)[2]
        seen_from(strategy, now + off_ms)
        check = checking(strategy)
        for _ in range(2):
            if operation == "check":
                decision = store.apply(key, check, 0, 1)
            elif operation == "many":
                decision = store.apply_many([key], check, 0, 1)[0]
            elif operation == "all":
                decision = store.apply_all([Step(key, check), Step(key, check, 0)], 0)[0]
            else:
                decision = store.apply(key, charging(strategy), 0, 1).decision
            steps += 1
            assert decision.reset_at in (end, end + HOUR)
            if decision.reset_at == end:
                assert decision.remaining == 9 - steps
    assert store.apply(key, peeking(calendar_quota(9, "hour")), 0, 1).remaining in (1, 9)


def test_the_awaitable_twins_look_a_second_time_too(server: RedisServer) -> None:
    """The same flow."""
    strategy = calendar_quota(9, "day", "Asia/Beirut")
    now = server_ms(server)

    async def run() -> list[int]:
        store = RedisStore.from_url(server.url, timeout_ms=PATIENT_MS)
        key, left = new_key(), []
        for off_ms in (9 * DAY, -9 * DAY):
            seen_from(strategy, now + off_ms)
            left.append((await store.aapply(key, checking(strategy), 0, 1)).remaining)
            seen_from(strategy, now - off_ms)
            (decision,) = await store.aapply_all([Step(key, checking(strategy))], 0)
            left.append(decision.remaining)
        await store.aclose()
        return left

    assert asyncio.run(run()) in ([8, 7, 6, 5], [8, 8, 7, 6], [8, 7, 8, 7], [8, 7, 6, 8])


def test_by_the_servers_clock_operations_leave_what_the_oracle_says(
    store: RedisStore, server: RedisServer
) -> None:
    """A refund, a charge and a pause, beside a limit of another kind in one request."""
    quota, pace = calendar_quota(9, "year", "Europe/Berlin"), gcra(5, DAY)
    tag = f"{{{new_key()}}}"
    now = server_ms(server)
    end = quota.periods_at(now)[2]
    both = [Step(f"{tag}:q", checking(quota), 4), Step(f"{tag}:p", checking(pace), 2)]
    assert [d.remaining for d in store.apply_all(both, 0)] == [5, 3]
    assert [d.remaining for d in store.apply_all(both, 0)] == [1, 1]
    assert [d.allowed for d in store.apply_all(both, 0)] == [False, False]
    assert store.apply(f"{tag}:q", refunding(quota, now), 0, 3) == 3
    assert store.apply(f"{tag}:q", refunding(quota, now - 400 * DAY), 0, 3) == 0
    assert store.apply(f"{tag}:q", charging(quota), 0, 40).decision.remaining == 0
    assert store.apply(f"{tag}:q", checking(quota), 0, 1).reset_at == end
    store.reset(f"{tag}:q")
    store.apply(f"{tag}:q", pausing(quota, end + HOUR), 0, 1)
    denied = store.apply(f"{tag}:q", checking(quota), 0, 1)
    assert (denied.allowed, denied.reset_at) == (False, end + HOUR)
