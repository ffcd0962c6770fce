"""Several limits on Redis: one script for any mixture, held to the oracle on real servers."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limit,
    Limits,
    ManualClock,
    Outcome,
    Store,
    Strategy,
    UnsupportedError,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window_log,
    slots,
    token_bucket,
)
from penstock.core._steps import Step
from penstock.core._transform import (
    charging,
    checking,
    pausing,
    refunding,
    releasing,
    renewing,
    taking,
)
from penstock.stores import open_store
from penstock.stores.redis import RedisStore
from penstock.strategies import Gcra
from tests.servers import RedisServer
from tests.stores import mixtures, several
from tests.stores.exactness import (
    TwoLimits,
    assert_exact_from_processes,
    assert_exact_from_tasks,
    assert_exact_from_threads,
)
from tests.stores.redis.live import (
    PATIENT_MS,
    new_key,
    open_empty,
    patient_url_of,
    running,
    url_of,
)
from tests.support.variables import figure

SEED = figure("SEED", 1)
REQUESTS = figure("REQUESTS", 1500)
START = mixtures.START


class Plain(Gcra):
    """A strategy without Lua: kept as a record, decided here."""

    name = "plain_cell"

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return super().check(state, now, cost)


def test_a_request_whose_limits_are_all_left_out_asks_nobody() -> None:
    """As on every other store, it is admitted."""
    with closing(open_empty("valkey")) as store:
        limits = Limits({"a": Limit("5/minute", optional=True)}, store=store)
        assert limits.check({}).allowed
        assert limits.reserve({}).cancel()


@pytest.mark.parametrize("server", ["valkey", "redis8"])
def test_any_mixture_is_decided_as_the_oracle_does(server: str) -> None:
    """Of strategies, operations, costs, shadows, keys named twice and clocks that go back."""
    store = open_empty(server)
    admitted, denied = mixtures.follow(store, mixtures.requests(SEED, REQUESTS))
    assert min(admitted, denied) > REQUESTS / 5
    store.close()


def test_pauses_race_as_if_in_turn() -> None:
    with closing(open_empty("valkey")) as store:
        several.assert_pauses_race_as_if_in_turn(store)


def test_any_steps_on_one_key_are_decided_as_the_oracle_does() -> None:
    """What is charged after a refund of the same call is counted by what the refund left."""
    with closing(open_empty("valkey")) as store:
        mixtures.follow(store, mixtures.requests_of_one_key(SEED, REQUESTS))


def test_what_follows_a_refund_in_one_call_bears_the_stamp_of_its_own_instant() -> None:
    """Not the later one of the units that were given back."""
    log = sliding_window_log(5, 1_000)
    key, later = new_key(), START + 700
    with closing(open_empty("valkey")) as store:
        store.apply(key, checking(log), later, 2)
        steps = [
            Step(key, checking(log), 1),
            Step(key, refunding(log, START), 3),
            Step(key, checking(log), 1),
        ]
        assert store.apply_all(steps, START)[1] == 3
        assert store.apply(key, checking(log), later, 5).retry_after_ms == 300


@pytest.mark.parametrize("server", ["valkey", "cluster"])
def test_strategies_without_lua_are_part_of_the_same_step(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mixtures.STRATEGIES, "plain", Plain(6, 1_000))
    names = ("plain", "cell", "log", "epoch")
    store = open_empty(server)
    admitted, denied = mixtures.follow(
        store, mixtures.requests(SEED, 400, names=names), "{one-slot}:"
    )
    assert min(admitted, denied) > 40
    store.close()


@pytest.mark.parametrize("server", ["valkey", "sentinel", "cluster"])
def test_callers_admit_exactly_the_tightest_limit(server: str) -> None:
    make = partial(open_store, url_of(server), use_server_time=False, timeout_ms=PATIENT_MS)
    assert_exact_from_threads(make, TwoLimits)
    assert_exact_from_tasks(make, TwoLimits)


def test_processes_admit_exactly_the_tightest_limit() -> None:
    make = partial(open_store, url_of("valkey"), use_server_time=False, timeout_ms=PATIENT_MS)
    assert_exact_from_processes(make, asked=TwoLimits)


def _commands(server: RedisServer) -> int:
    info = str(server.call("INFO", "commandstats"))
    calls = [
        part for part in info.split() if part.startswith(("cmdstat_evalsha:", "cmdstat_eval:"))
    ]
    return sum(int(part.split("calls=")[1].split(",")[0]) for part in calls)


def test_three_limits_are_one_round_trip() -> None:
    server: RedisServer = running("valkey")
    limits = Limits(
        {"user": "100/minute", "tenant": "1000/minute", "all": fixed_window(9_000, 60_000)},
        store=patient_url_of("valkey"),
        prefix=new_key(),
    )
    keys = {"user": "a", "tenant": "b", "all": "c"}
    limits.check(keys)
    before = _commands(server)
    for _ in range(10):
        assert limits.check(keys)
    assert _commands(server) - before == 10
    limits.close()


def test_in_a_cluster_a_hash_tag_makes_it_one_step() -> None:
    with closing(RedisStore.from_url(url_of("cluster"), timeout_ms=PATIENT_MS)) as store:
        assert not Limits({"a": "5/second"}, store=store).atomic
        assert Limits({"a": "5/second"}, store=store, prefix="{api}").atomic
        with pytest.raises(ConfigInvalidError, match="hash tag"):
            Limits({"a": "5/second"}, store=store, prefix="b", require_atomic=True)


def test_keys_in_several_slots_are_given_back_when_a_later_one_denies() -> None:
    with closing(RedisStore.from_url(url_of("cluster"), timeout_ms=PATIENT_MS)) as store:
        limits = Limits(
            {
                "cell": gcra(50, 10**8),
                "window": fixed_window(50, 10**8),
                "tight": fixed_window(2, 10**8),
                "last": gcra(50, 10**8),
            },
            store=store,
            prefix=new_key(),
        )
        for _ in range(5):
            verdict = limits.check({"cell": "a", "window": "b", "tight": "c", "last": "d"})
            assert len(verdict.limits) == 4
        assert verdict.violated == ("tight",)
        keys = {"cell": "a", "window": "b", "tight": "c", "last": "d"}
        left = {name: said.remaining for name, said in limits.peek(keys).limits.items()}
        assert left == {"cell": 48, "window": 48, "tight": 0, "last": 48}


@pytest.mark.parametrize("where", ["valkey", "cluster"])
@pytest.mark.parametrize("use_server_time", [True, False])
def test_a_request_without_steps_is_admitted(where: str, use_server_time: bool) -> None:
    """Optional limits without a key, and a charge of nothing that is cancelled."""
    store = RedisStore.from_url(
        url_of(where), use_server_time=use_server_time, timeout_ms=PATIENT_MS
    )
    with closing(store):
        limits = Limits({"user": Limit("5/minute", optional=True)}, store=store, prefix=new_key())
        assert limits.check({}).limits == limits.peek({}).limits == {}
        assert limits.reserve({}).cancel()
        assert limits.reserve({"user": "a"}, 0).cancel()
        assert limits.peek({"user": "a"}).remaining == 5
        assert asyncio.run(_without_steps(store, limits))


async def _without_steps(store: RedisStore, limits: Limits) -> bool:
    verdict = await limits.acheck({})
    assert await (await limits.areserve({})).acancel()
    await store.aclose()
    return verdict.allowed


def test_in_a_cluster_the_same_step_twice_is_not_admitted_for_passing_once() -> None:
    """The second one denies, so that the key in another slot is charged nothing."""
    with closing(open_empty("cluster")) as store:
        narrow, plenty = fixed_window(3, 10**8, "first"), fixed_window(50, 10**8, "first")
        twice = Step("narrow", checking(narrow), 2)
        other = Step("other", checking(plenty))
        told = store.apply_all([twice, twice, other], START)
        assert [decision.allowed for decision in told] == [True, False, True]
        left = store.apply_all([twice._replace(cost=0), other._replace(cost=0)], START)
        assert [decision.remaining for decision in left] == [3, 50]


def test_in_a_cluster_charges_come_back_by_the_clock_of_each_slot() -> None:
    """A log gives back what was charged at the very instant, and the nodes decide one after the
    other, each by its own clock."""
    with closing(RedisStore.from_url(url_of("cluster"), timeout_ms=PATIENT_MS)) as store:
        limits = Limits(
            {name: sliding_window_log(400, 864_000_000) for name in "abcd"},
            store=store,
            prefix=new_key(),
        )
        assert not limits.atomic
        keys = dict.fromkeys("abcd", "k")
        for _ in range(100):
            assert limits.reserve(keys).cancel()
            assert limits.check(keys)
            assert limits.reserve(keys, 2).settle(1)
        left = {decision.remaining for decision in limits.peek(keys).limits.values()}
        assert left == {200}


def test_in_a_cluster_slots_of_shadows_alone_are_charged_last() -> None:
    """What is denied elsewhere need not be taken back from them, which a clock that went back makes
    impossible."""
    with closing(open_empty("cluster")) as store:
        shadow = Step("{a}", checking(fixed_window(5, 1_000)), shadow=True)
        never = Step("{b}", checking(fixed_window(1, 1_000)), 2)
        store.apply_all([shadow], START + 1_000)
        answers = store.apply_all([shadow, never], START)
        assert [decision.allowed for decision in answers] == [True, False]
        assert store.apply_all([shadow._replace(cost=0)], START)[0].remaining == 4


def test_in_a_cluster_nothing_is_given_back_or_paused_after_a_denial() -> None:
    """A charge is settled once because the first step of a settlement denies the second one."""
    with closing(open_empty("cluster")) as store:
        once, cell, pool = fixed_window(1, 10**8, "first"), gcra(5, 10**8), slots(2, 10**6)
        take = Step("once", checking(once))
        held = [Step("cell", checking(cell), 3), Step("pool", taking(pool, "s1"))]
        assert all(store.apply_all([take, *held], START))
        back = [Step("cell", refunding(cell, START), 3), Step("pool", releasing(pool, "s1"))]
        pause = Step("cell", pausing(cell, START + 10**7))
        assert store.apply_all([take, *back, pause], START)[1:] == [0, 0, None]
        looks = [step._replace(cost=0) for step in held]
        assert [decision.remaining for decision in store.apply_all(looks, START)] == [2, 1]


@pytest.mark.parametrize("where", ["valkey", "cluster"])
def test_what_the_server_charged_comes_back_by_its_clock(where: str) -> None:
    """By the server's clock, whatever ours says."""
    for strategy in (gcra(10, 10**7), fixed_window(10, 10**7)):
        limiter = rate_limit(strategy, store=patient_url_of(where), prefix=new_key())
        charge = limiter.reserve("k", 8)
        assert abs(charge.charged_at - limiter.clock.now()) < 60_000
        assert charge.settle(3)
        assert limiter.peek("k").remaining == 7
        limiter.pause("k", limiter.clock.now() + 5_000_000)
        assert limiter.check("k").retry_after_ms > 4_000_000
        limiter.close()


def test_a_foreign_key_charges_nobody() -> None:
    server: RedisServer = running("valkey")
    prefix = new_key()
    limits = Limits(
        {"a": "5/second", "b": "5/second"}, store=patient_url_of("valkey"), prefix=prefix
    )
    server.call("LPUSH", f"{prefix}:b:k", "not ours")
    with pytest.raises(ConfigInvalidError, match="something else"):
        limits.check({"a": "k", "b": "k"})
    assert server.call("EXISTS", f"{prefix}:a:k") == 0
    limits.close()


class OnlyChecks(Strategy):
    """What somebody wrote with a Lua check and nothing else."""

    name = "only_checks"
    limit = 5
    lua_sources = Gcra.lua_sources[:0]

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(1, Decision(True, 5, 4, now, 0), 1_000, True)


def test_a_strategy_that_cannot_give_back_says_so() -> None:
    store: Store = open_empty("valkey")
    with pytest.raises(UnsupportedError, match="no refund"):
        store.apply("k", refunding(OnlyChecks(), START), START, 1)
    assert store.apply_all([Step("k", checking(OnlyChecks()), 1, False)], START)[0].allowed
    store.close()


def test_a_timeline_by_the_limiter_is_that_of_the_oracle() -> None:
    """Reserve, settle and cancel, on Redis and in memory, side by side."""
    clock = ManualClock(START)
    store = open_empty("valkey")
    shape = {"cell": gcra(9, 1_000), "window": fixed_window(12, 700)}
    here, there = Limits(shape, clock=clock), Limits(shape, clock=clock, store=store)
    keys = {"cell": "k", "window": "k"}
    for step in range(200):
        clock.advance((0, 30, 90, 250)[step % 4])
        charges = [limits.reserve(keys, {"cell": 1 + step % 3}) for limits in (here, there)]
        assert charges[0].verdict == charges[1].verdict
        for charge in charges:
            if charge and step % 2:
                charge.settle({"cell": step % 5})
            elif charge and step % 3 == 0:
                charge.cancel()
        assert here.peek(keys) == there.peek(keys)
    store.close()


def test_what_comes_back_in_a_pause_is_what_was_charged() -> None:
    """To the last bit, as in memory: a sum that has to be rounded is rounded down."""
    bucket = token_bucket(10, 0.01)
    store, oracle = open_empty("valkey"), mixtures.OracleStore()
    transforms = [
        checking(bucket),
        pausing(bucket, START + 5_000),
        refunding(bucket, START),
        charging(bucket),
        refunding(bucket, START),
        *[checking(bucket)] * 4,
    ]
    for transform in transforms:
        cost = 1 if transform.role == "check" else 3
        here, there = (each.apply("k", transform, START, cost) for each in (oracle, store))
        assert there == here
    assert not there
    store.close()


@pytest.mark.parametrize("slot_id", ['s"quoted"\\', "s\n\t\x00", "sé漢😀", "17", "[]"])
def test_an_id_is_taken_as_it_is_beside_other_steps_and_alone(slot_id: str) -> None:
    pool = slots(1, ttl_ms=60_000)
    store = open_empty("valkey")
    beside = Step("cell", checking(gcra(1_000, 60_000)))

    taken, _ = store.apply_all([Step("pool", taking(pool, slot_id)), beside], START)
    assert taken.allowed
    assert not store.apply_all([Step("pool", taking(pool, "another"))], START)[0]
    assert store.apply_all([Step("pool", taking(pool, slot_id))], START)[0].allowed
    (renewed,), _ = store.apply_all([Step("pool", renewing(pool, (slot_id,))), beside], START + 9)
    assert renewed.reset_at == START + 60_009
    assert store.apply_all([Step("pool", releasing(pool, slot_id)), beside], START + 9)[0] == 1
    assert store.apply_all([Step("pool", releasing(pool, slot_id))], START + 9) == [0]
    store.close()


def test_a_log_is_given_back_to_and_asked_again_in_one_call() -> None:
    """Every order of operations on one key is decided on what the earlier ones left."""
    log = sliding_window_log(3, 1_000)
    checks, back, later = checking(log), refunding(log, START), pausing(log, START + 1_500)
    orders = [
        [(checks, 3), (back, 1), (checks, 1), (checks, 1)],
        [(back, 2), (checks, 2), (back, 9), (charging(log), 2), (checks, 1)],
        [(back, 9), (checks, 1), (later, 1), (back, 1), (checks, 1)],
        [(later, 1), (back, 1), (checks, 1), (refunding(log, START + 500), 3), (checks, 3)],
    ]
    store, oracle = open_empty("valkey"), mixtures.OracleStore()
    for number, order in enumerate(orders):
        key = f"k{number}"
        for now in (START, START + 10, START + 600, START + 1_200):
            steps = [Step(key, checking(log)), *[Step(key, *each, shadow=True) for each in order]]
            assert store.apply_all(steps, now) == oracle.apply_all(steps, now), (number, now)
    store.close()
