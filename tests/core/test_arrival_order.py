"""Callers of one process are admitted in the order in which they came: on every store, threads and
tasks, however the replies of the store are ordered, and without a round trip for each of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Limits,
    MemoryStore,
    RateLimitExceededError,
    Store,
    StoreUnavailableError,
    Strategy,
    Transform,
    fixed_window,
    gcra,
    rate_limit,
    slots,
    token_bucket,
)
from tests.stores.postgres import live as postgres
from tests.stores.redis.live import PATIENT_MS, new_key, url_of

from .waiters import auntil, until, waiting


@pytest.fixture(params=["valkey", "postgres", "sqlite", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/order.db?timeout_ms={PATIENT_MS}"
    if request.param == "postgres":
        return postgres.url_of(postgres.new_table(), timeout_ms=PATIENT_MS)
    return f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"


@pytest.mark.parametrize("strategy", [gcra(1_000, 1_000, burst=1), token_bucket(3, 500)], ids=repr)
def test_tasks_are_admitted_in_the_order_in_which_they_came(url: str, strategy: Strategy) -> None:
    """Also those that come while others before them are being asked for."""

    async def main() -> None:
        async with rate_limit(strategy, store=url, prefix=new_key()) as limiter:
            for turn in range(6):
                order: list[int] = []

                async def one(number: int, key: str, order: list[int]) -> None:
                    await limiter.aacquire(key)
                    order.append(number)

                tasks = []
                for number in range(30):
                    tasks.append(asyncio.create_task(one(number, f"k{turn}", order)))
                    if turn % 2:
                        await asyncio.sleep(0)
                await asyncio.gather(*tasks)
                assert order == list(range(30))

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("several", [False, True])
def test_threads_get_the_only_slot_in_order_and_as_soon_as_it_is_released(
    url: str, several: bool
) -> None:
    """None of them leaves a ticket behind which the others would wait."""
    keys: Any = {"flight": "k"} if several else "k"
    limiter: Any = rate_limit(slots(1), store=url, prefix=new_key())
    if several:
        limiter = Limits({"flight": slots(1)}, store=limiter.store, prefix=new_key())
    order: list[int] = []
    idle_s: list[float] = []
    released_at = [0.0]

    def one(number: int) -> None:
        with limiter.acquire(keys, timeout=60):
            idle_s.append(time.monotonic() - released_at[0])
            order.append(number)
            time.sleep(0.005)
            released_at[0] = time.monotonic()

    for _ in range(3):
        order.clear()
        held = limiter.reserve(keys)
        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda number=number: waiting(limiter) == number + 1)
        released_at[0] = time.monotonic()
        assert held.cancel()
        for thread in threads:
            thread.join(60)
        assert order == list(range(8))
    # A ticket that is left behind costs two seconds.
    assert max(idle_s) < 1
    limiter.store.close()


def test_threads_that_come_at_once_get_the_only_slot_without_a_stall(url: str) -> None:
    limiter = rate_limit(slots(1), store=url, prefix=new_key())
    for _ in range(5):
        gate = threading.Barrier(8)

        def one(gate: threading.Barrier) -> None:
            gate.wait(20)
            with limiter.acquire("k", timeout=60):
                pass

        threads = [threading.Thread(target=one, args=(gate,)) for _ in range(8)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert time.monotonic() - began < 1.5
    limiter.store.close()


class SlowStore(Store):
    """A MemoryStore whose replies come late. While `held` is a list, each call waits for its event,
    which is added to the list, before it is decided."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.inner = MemoryStore()
        self.delay_s = delay_s
        self.is_broken = False
        self.calls = 0
        self.held: list[asyncio.Event] | None = None

    async def aapply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        await self._turn()
        return self.inner.apply(key, transform, now, cost)

    async def aapply_all(self, steps: Sequence[Any], now: int) -> list[Any]:
        await self._turn()
        return self.inner.apply_all(steps, now)

    async def _turn(self) -> None:
        self.calls += 1
        if self.held is not None:
            decided = asyncio.Event()
            self.held.append(decided)
            await decided.wait()
        await asyncio.sleep(self.delay_s)
        if self.is_broken:
            raise StoreUnavailableError("away")


def test_a_store_far_away_does_not_bound_the_rate_to_one_call_per_round_trip() -> None:
    async def main() -> None:
        store = SlowStore(0.05)
        for limiter, keys in (
            (rate_limit(fixed_window(1_000, 60_000), store=store, prefix="a"), "k"),
            (rate_limit(slots(1_000), store=store, prefix="b"), "k"),
            (Limits({"one": "1000/minute"}, store=store, prefix="c"), {"one": "k"}),
        ):
            acquire: Any = limiter.aacquire
            began = time.monotonic()
            await asyncio.gather(*[acquire(keys) for _ in range(60)])
            # One after the other they would take three seconds.
            assert time.monotonic() - began < 1

    asyncio.run(main())


def test_callers_beside_one_that_fails_do_not_wait_for_their_errors_in_turn() -> None:
    async def main() -> None:
        store = SlowStore(0.1)
        store.is_broken = True
        limiter = rate_limit("1000/minute", store=store)
        began = time.monotonic()
        calls = [limiter.aacquire("k") for _ in range(30)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in found} == {StoreUnavailableError}
        assert time.monotonic() - began < 1

    asyncio.run(main())


def test_waiters_behind_a_denied_leader_do_not_ask() -> None:
    async def main() -> None:
        store = SlowStore()
        limiter = rate_limit(fixed_window(1, 3_600_000), store=store)
        await limiter.aacquire("k")
        store.calls = 0
        tasks = [asyncio.create_task(limiter.aacquire("k")) for _ in range(20)]
        await auntil(lambda: waiting(limiter) == 20 and store.calls == 1)
        await asyncio.sleep(0.1)
        assert store.calls == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


class Three:
    """Three tasks: the first is admitted, and the others ask side by side."""

    def __init__(self, strategy: Strategy) -> None:
        self.store = SlowStore()
        self.limiter: Any = rate_limit(strategy, store=self.store, prefix="p")
        # As another process would use it.
        self.other: Any = rate_limit(strategy, store=self.store.inner, prefix="p")
        self.order: list[int] = []
        self.answers: dict[int, Any] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        calls = self.store.held = []
        for number in range(3):
            self.tasks.append(asyncio.create_task(self._acquire(number)))
            await auntil(lambda number=number: waiting(self.limiter) == number + 1)
        await self.decide(0)
        await self.tasks[0]
        await auntil(lambda: len(calls) == 3)

    async def decide(self, number: int) -> None:
        assert self.store.held is not None
        self.store.held[number].set()
        await asyncio.sleep(0.01)

    async def _acquire(self, number: int) -> None:
        self.answers[number] = await self.limiter.aacquire("k")
        self.order.append(number)


@pytest.mark.parametrize("kind", ["slots", "gcra"])
def test_an_answer_that_overtakes_that_of_an_earlier_caller_changes_no_order(kind: str) -> None:
    """Two ask side by side for what another process leaves only one of, and the later one is
    decided first. A slot goes to the earlier one; a unit waits until the earlier one has its
    own."""
    strategy: Any = slots(3) if kind == "slots" else gcra(10, 1_000, burst=3)

    async def main() -> None:
        three = Three(strategy)
        await three.begin()
        assert three.other.reserve("k").allowed
        await three.decide(2)
        assert three.order == [0]
        three.store.held, held = None, three.store.held
        assert held is not None
        held[1].set()
        if kind == "slots":
            await asyncio.wait_for(three.tasks[1], 20)
            assert three.order == [0, 1]
            await three.answers[0].acancel()
        await asyncio.wait_for(asyncio.gather(*three.tasks), 20)
        assert three.order == [0, 1, 2]

    asyncio.run(main())


def test_a_waiter_cancelled_while_it_holds_a_slot_behind_others_gives_it_back() -> None:
    async def main() -> None:
        three = Three(slots(3))
        await three.begin()
        await three.decide(2)
        assert three.other.peek("k").remaining == 1
        three.store.held, held = None, three.store.held
        assert held is not None
        three.tasks[2].cancel()
        await asyncio.gather(three.tasks[2], return_exceptions=True)
        assert three.other.peek("k").remaining == 2
        held[1].set()
        await asyncio.wait_for(three.tasks[1], 20)
        assert three.order == [0, 1]

    asyncio.run(main())


@pytest.mark.parametrize("several", [False, True])
def test_a_release_in_the_same_process_wakes_the_waiter_of_another_limiter(several: bool) -> None:
    """Limiters on one store object, which wait for the same slot, each in a queue of its own."""
    url = f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"
    prefix = new_key()
    one = rate_limit(slots(1), store=url, prefix=f"{prefix}:flight")
    other: Any = Limits({"flight": slots(1), "rate": "100/s"}, store=one.store, prefix=prefix)
    keys: Any = {"flight": "k", "rate": "k"}
    if not several:
        other, keys = rate_limit(slots(1), store=one.store, prefix=f"{prefix}:flight"), "k"
    waits_s = []
    for _ in range(5):
        held = one.reserve("k")
        found: list[float] = []

        def wait(found: list[float]) -> None:
            with other.acquire(keys, timeout=20):
                found.append(time.monotonic())

        thread = threading.Thread(target=wait, args=(found,))
        thread.start()
        until(lambda: waiting(other) == 1)
        time.sleep(0.05)
        assert held.cancel()
        released_at = time.monotonic()
        thread.join(20)
        waits_s.append(found[0] - released_at)
    # Polling alone would take 10 ms on average.
    assert sorted(waits_s)[1] < 0.01
    one.store.close()


def test_a_timeout_is_kept_behind_others_and_as_the_first() -> None:
    limiter = rate_limit(slots(1), prefix=new_key())
    with limiter.reserve("k"):
        began = time.monotonic()
        threads = [threading.Thread(target=_refused, args=(limiter, 0.2)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert 0.2 <= time.monotonic() - began < 2


def _refused(limiter: Any, timeout: float) -> None:
    with pytest.raises(RateLimitExceededError):
        limiter.acquire("k", timeout=timeout)
