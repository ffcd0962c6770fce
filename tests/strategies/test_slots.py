"""Slots: the laws of holding, in Python, in memory and on Redis."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Charge,
    ConfigInvalidError,
    Limits,
    ManualClock,
    MemoryStore,
    Outcome,
    RateLimitExceededError,
    Store,
    UnsupportedError,
    fixed_window,
    gcra,
    rate_limit,
    slots,
)
from penstock.core._steps import Step
from penstock.core._transform import (
    looking,
    queueing,
    reclaiming,
    releasing,
    renewing,
    taking,
    ticketing,
)
from penstock.stores import open_store
from penstock.strategies import Slots
from tests.servers import NotReady, eventually
from tests.stores.mixtures import OracleStore
from tests.stores.redis.live import PATIENT_MS, new_key, open_empty, patient_url_of, url_of

START = 1_700_000_000_000
IDS = [f"s{number}" for number in range(6)]


def _asked(strategy: Slots, name: str, state: Any, now: int, *arguments: str) -> Outcome[Any]:
    """What the strategy answers; to the renewal of one slot, the one decision."""
    if name != "renew":
        outcome: Outcome[Any] = getattr(strategy, name)(state, now, *arguments)
        return outcome
    renewed = strategy.renew(state, now, arguments)
    return Outcome(renewed.state, renewed.result[0], renewed.ttl_ms, renewed.persist)


@given(
    st.lists(
        st.tuples(
            st.integers(-200, 400),
            st.sampled_from(IDS),
            st.sampled_from(["take", "take", "renew", "release"]),
        ),
        max_size=60,
    )
)
def test_never_more_than_the_limit_hold_a_slot(timeline: list[tuple[int, str, str]]) -> None:
    """At any instant, by a clock that may go back; and whoever holds one keeps it for its ttl."""
    strategy = slots(3, 500)
    state: Any = None
    now = START
    until: dict[str, int] = {}
    for gap, slot_id, name in timeline:
        now += gap
        outcome = _asked(strategy, name, state, now, slot_id)
        if outcome.persist:
            state = outcome.state
        held = {each: at for each, at in until.items() if at > now}
        if outcome.persist:
            # What is over is forgotten with the next write, and does not come back with the clock.
            until = dict(held)
        if name == "release":
            assert outcome.result == (slot_id in held)
            until.pop(slot_id, None)
        else:
            free = len(held) < 3 and name == "take"
            assert outcome.result.allowed is (slot_id in held or free)
            if outcome.result.allowed:
                until[slot_id] = max(held.get(slot_id, 0), now + 500)
            else:
                assert 1 <= outcome.result.retry_after_ms <= 1_000
        held = {each: at for each, at in until.items() if at > now}
        assert len(held) <= 3
        assert strategy.peek(state, now).remaining == 3 - len(held)
        if state is not None:
            strategy.restore(state)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 900),
            st.sampled_from(IDS),
            st.sampled_from(["take", "take", "renew", "release", "reclaim"]),
        ),
        max_size=60,
    )
)
def test_every_slot_that_was_not_given_back_is_counted_once(
    timeline: list[tuple[int, str, str]],
) -> None:
    """By whoever asks first, as long as somebody asks within one ttl."""
    strategy = slots(3, 500)
    state: Any = None
    now = forgotten_at = START
    until: dict[str, int] = {}
    lost = told = 0

    def run(name: str, *arguments: str) -> Any:
        nonlocal state, forgotten_at
        outcome = _asked(strategy, name, state if now < forgotten_at else None, now, *arguments)
        if outcome.persist:
            state, forgotten_at = outcome.state, now + outcome.ttl_ms
        return outcome.result

    for gap, slot_id, name in timeline:
        now += gap
        gone = [each for each, at in until.items() if at <= now]
        lost = lost + len(gone) if now < forgotten_at else told
        until = {each: at for each, at in until.items() if at > now}
        if name == "reclaim":
            told += run("reclaim")
            assert told == lost
        elif name == "release":
            assert run("release", slot_id) == (until.pop(slot_id, None) is not None)
        elif run(name, slot_id).allowed:
            until[slot_id] = now + 500


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(
            st.integers(0, 300), st.sampled_from(IDS), st.sampled_from(["ask", "ask", "leave"])
        ),
        max_size=80,
    ),
)
def test_who_waits_is_served_in_the_order_of_coming(
    limit: int, timeline: list[tuple[int, str, str]]
) -> None:
    """A slot goes to the waiter that has waited longest of those that asked within a quarter of
    a second. A waiter that does not ask for two seconds has left."""
    strategy = slots(limit, 10**9)
    state: Any = None
    now = START
    queue: dict[str, int] = {}
    held: set[str] = set()
    for gap, slot_id, what in timeline:
        now += gap
        queue = {each: asked for each, asked in queue.items() if now - asked < 2_000}
        if what == "leave":
            outcome: Any = strategy.release(state, now, slot_id)
            assert outcome.result == (slot_id in held)
            held.discard(slot_id)
            queue.pop(slot_id, None)
        else:
            outcome = strategy.queue_up(state, now, slot_id)
            waiting = list(queue)
            before = waiting[: waiting.index(slot_id)] if slot_id in queue else waiting
            ahead = sum(now - queue[each] < 250 for each in before)
            turn = slot_id in held or len(held) + ahead < limit
            assert outcome.result.allowed is turn
            if turn:
                held.add(slot_id)
                queue.pop(slot_id, None)
            else:
                queue[slot_id] = now
        if outcome.persist:
            state = outcome.state
        if state is not None:
            strategy.restore(state)
        assert len(held) <= limit


class Unforgetting(OracleStore):
    """A server keeps a state for a while after its ttl; what was lost may be told until then."""

    def state(self, key: str, now: int) -> Any:
        return self.held.get(key, (None, 0))[0]


def _timeline(seed: int, count: int) -> Any:
    """Up to four steps on a key at each instant, of strategies that share it."""
    rng = random.Random(seed)
    pools = [slots(3, 500), slots(5, 700), slots(2, 100)]
    now = START
    for _ in range(count):
        now += rng.choice((0, 1, 20, 90, 300, -60, 700, -700, 2_500))
        steps = []
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            strategy, slot_id = rng.choice(pools), rng.choice(IDS)
            make = rng.choice(
                (taking, queueing, queueing, ticketing, renewing, releasing, None, looking)
            )
            if make is None:
                transform: Any = reclaiming(strategy)
            elif make is looking:
                transform = looking(strategy)
            elif make is renewing:
                transform = renewing(strategy, tuple(rng.choices(IDS, k=rng.choice((1, 1, 3, 6)))))
            else:
                transform = make(strategy, slot_id)
            cost = 0 if make is looking else 1
            steps.append(Step("k", transform, cost, make is queueing or rng.random() < 0.4))
        yield now, steps


@pytest.mark.parametrize("server", ["valkey", "redis8"])
def test_lua_holds_as_the_oracle_does(server: str) -> None:
    """Also where a call names the key several times, as one does that renews many."""
    store, oracle, strategy = open_empty(server), Unforgetting(), slots(3, 500)
    for now, steps in _timeline(3, 2_000):
        assert store.apply_all(steps, now) == oracle.apply_all(steps, now)
        limiter = rate_limit(strategy, store=store, clock=ManualClock(now))
        assert limiter.peek("k") == strategy.peek(oracle.state("k", now), now)
    store.close()


@pytest.fixture(params=["memory", "redis", "cluster", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/slots.db"}.get(request.param)
    if url is None:
        name = "valkey" if request.param == "redis" else "cluster"
        opened = open_store(url_of(name), timeout_ms=PATIENT_MS)
    else:
        opened = open_store(url)
    yield opened
    opened.close()


def test_a_slot_is_held_until_it_is_given_back(store: Store) -> None:
    limiter = rate_limit(slots(2), store=store, prefix=new_key())
    first, second = limiter.reserve("k"), limiter.reserve("k")
    denied = limiter.reserve("k")
    assert (first.allowed, second.allowed, denied.allowed) == (True, True, False)
    assert first.holds
    assert not denied.holds
    assert denied.retry_after_ms == 1_000
    assert first.renew()
    assert first.cancel()
    assert not first.cancel()
    assert not first.holds
    assert not first.renew()
    assert limiter.peek("k").remaining == 1
    with limiter.reserve("k") as third:
        assert third
        assert third.settle(1)
    assert second.settle(0)
    assert limiter.peek("k").remaining == 2


def test_a_denied_waiter_leaves_a_ticket_only_as_a_shadow(store: Store) -> None:
    """A denied request writes nothing; a shadow, which does not deny, may."""
    pool, key = slots(1), new_key()
    store.apply_all([Step(key, taking(pool, "holder"))], START)
    for shadow, ahead in ((False, 0), (True, 1)):
        denied = store.apply_all([Step(key, queueing(pool, "first"), 1, shadow)], START)
        assert not denied[0]
        assert store.apply_all([Step(key, ticketing(pool, "second"))], START) == [ahead]
        store.apply_all([Step(key, releasing(pool, "second"))], START)


def test_a_block_gives_its_slot_back_however_it_ends(store: Store) -> None:
    limiter = rate_limit(slots(1), store=store, prefix=new_key())
    with limiter.reserve("k") as charge:
        assert charge.holds
    assert not charge.holds
    with pytest.raises(ZeroDivisionError), limiter.acquire("k", timeout=0):
        raise ZeroDivisionError
    assert limiter.peek("k").remaining == 1


def test_a_block_spends_what_was_reserved_beside_a_slot() -> None:
    limits = Limits({"flight": slots(1), "tokens": gcra(100, 10**6)}, clock=ManualClock(START))
    keys = {"flight": "k", "tokens": "k"}

    async def main() -> None:
        async with await limits.areserve(keys, {"tokens": 30}):
            pass

    asyncio.run(main())
    left = {name: said.remaining for name, said in limits.peek(keys).limits.items()}
    assert left == {"flight": 1, "tokens": 70}


def test_slots_are_a_limit_like_any_other(store: Store) -> None:
    limits = Limits(
        {"flight": slots(2), "rate": fixed_window(3, 10**8), "tokens": gcra(100, 10**8)},
        store=store,
        prefix=f"{{{new_key()}}}",
    )
    keys = dict.fromkeys(("flight", "rate", "tokens"), "k")
    one = limits.reserve(keys, {"tokens": 30})
    two = limits.reserve(keys, {"tokens": 30})
    three = limits.reserve(keys, {"tokens": 30})
    assert three.verdict is not None
    assert three.verdict.violated == ("flight",)
    assert one.settle({"tokens": 5})
    assert limits.peek(keys).limits["rate"].remaining == 1
    four = limits.reserve(keys, {"tokens": 66})
    assert four.verdict is not None
    assert four.verdict.violated == ("tokens",)
    left = {name: said.remaining for name, said in limits.peek(keys).limits.items()}
    assert left == {"flight": 1, "rate": 1, "tokens": 65}
    assert two.cancel()
    with pytest.raises(UnsupportedError, match="reserve"):
        limits.check(keys)
    with pytest.raises(ConfigInvalidError, match="one slot"):
        limits.reserve(keys, {"flight": 2})
    limits.close()


def test_acquire_waits_for_a_slot(store: Store) -> None:
    limiter = rate_limit(slots(1), store=store, prefix=new_key())
    held = limiter.acquire("k")
    assert isinstance(held, Charge)
    with pytest.raises(RateLimitExceededError):
        limiter.acquire("k", timeout=0.1)
    threading.Timer(0.2, held.cancel).start()
    assert limiter.acquire("k", timeout=20).holds


def test_a_slot_that_is_not_renewed_comes_back_by_itself() -> None:
    clock = ManualClock(START)
    limiter = rate_limit(slots(1, 1_000), clock=clock)
    lost = limiter.reserve("k")
    clock.advance(999)
    assert not limiter.reserve("k")
    clock.advance(1)
    assert limiter.reserve("k")
    assert not lost.renew()
    assert not lost.holds
    assert lost.cancel()
    assert limiter.peek("k").remaining == 0


def test_a_holder_stops_counting_on_its_slot_before_it_expires() -> None:
    """By its own steady clock, whatever the store says."""
    limiter = rate_limit(slots(1, 400))
    charge = limiter.reserve("k")
    began = time.monotonic()
    assert charge.holds
    while charge.holds:
        time.sleep(0.005)
    assert time.monotonic() - began < 0.4
    assert charge.renew() is (limiter.peek("k").remaining == 0)


def test_checks_of_slots_say_what_to_use() -> None:
    limiter = rate_limit(slots(1))
    for call in (partial(limiter.check, "k"), partial(limiter.check_many, ["k"])):
        with pytest.raises(UnsupportedError, match="reserve"):
            call()
    with pytest.raises(UnsupportedError, match="reserve"):
        asyncio.run(limiter.acheck("k"))
    with pytest.raises(UnsupportedError, match="cannot be paused"):
        limiter.pause("k", START)


def test_every_store_says_why_slots_cannot_be_paused(store: Store) -> None:
    limits = Limits({"rate": gcra(5, 10**6), "flight": slots(1)}, store=store, prefix=new_key())
    keys = {"rate": "k", "flight": "k"}
    with pytest.raises(UnsupportedError, match="slots cannot be paused"):
        limits.pause(keys, limits.clock.now() + 60_000)
    assert limits.peek(keys)


def test_tasks_hold_slots_too() -> None:
    async def main() -> int:
        limiter = rate_limit(slots(3), store=patient_url_of("valkey"), prefix=new_key())
        most = now = 0

        async def work() -> None:
            nonlocal most, now
            async with await limiter.aacquire("k") as charge:
                now += 1
                most = max(most, now)
                assert await charge.arenew()
                now -= 1
                assert await charge.acancel()

        await asyncio.gather(*(work() for _ in range(20)))
        assert (await limiter.apeek("k")).remaining == 3
        await limiter.aclose()
        return most

    assert 1 <= asyncio.run(main()) <= 3


HOLDER = """
import sys, time
from penstock import rate_limit, slots
limiter = rate_limit(slots(2, 1_000), store=sys.argv[1], prefix=sys.argv[2])
charge = limiter.acquire("k", timeout=20)
print("held", flush=True)
while True:
    time.sleep(0.2)
    charge.renew()
"""


def test_the_slots_of_a_killed_process_come_back_within_one_ttl() -> None:
    prefix, url = new_key(), patient_url_of("valkey")
    command = [sys.executable, "-c", HOLDER, url, prefix]
    holders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    def all_are_free() -> None:
        if limiter.peek("k").remaining < 2:
            raise NotReady("held")

    limiter = rate_limit(slots(2, 1_000), store=url, prefix=prefix)
    try:
        for holder in holders:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
        for _ in range(8):
            # They go on renewing.
            assert not limiter.reserve("k")
            time.sleep(0.25)
        holders[0].kill()
        os.kill(holders[1].pid, signal.SIGSTOP)
        eventually(all_are_free, within=20, what="the slots of the dead")
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
        limiter.close()


def test_a_store_that_is_bounded_may_deny_a_slot_for_want_of_room() -> None:
    store = MemoryStore(max_keys=1, overflow="deny")
    limiter = rate_limit(slots(2), store=store)
    assert limiter.reserve("a")
    assert not limiter.reserve("b")


def test_a_ticket_whose_owner_stopped_asking_delays_no_other_waiter() -> None:
    """After a quarter of a second; an owner that comes back within two has its old place."""
    strategy = slots(1, ttl_ms=10_000)
    state = strategy.take(None, START, "held").state
    state = strategy.queue_up(state, START, "silent").state
    state = strategy.queue_up(state, START + 100, "second").state
    state = strategy.release(state, START + 200, "held").state
    denied = strategy.queue_up(state, START + 249, "second")
    assert not denied.result.allowed
    assert strategy.queue_up(denied.state, START + 250, "second").result.allowed
    returned = strategy.queue_up(denied.state, START + 1_000, "silent")
    assert returned.result.allowed


def test_a_denied_slot_says_to_ask_again_within_a_second() -> None:
    """At the expiry, if that is sooner."""
    strategy = slots(1, ttl_ms=10_000)
    state = strategy.take(None, START, "held").state
    for later, wait_ms in ((0, 1_000), (8_999, 1_000), (9_400, 600), (9_999, 1)):
        denied = strategy.take(state, START + later, "other").result
        assert (denied.reset_at, denied.retry_after_ms) == (START + 10_000, wait_ms)
