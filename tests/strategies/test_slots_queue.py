"""Waiting for a slot, in turn with other processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Limits,
    MemoryStore,
    RateLimitExceededError,
    fixed_window,
    rate_limit,
    slots,
)
from penstock.core._decision import Outcome
from penstock.core._transform import Transform
from penstock.stores import open_store
from tests.servers import NotReady, eventually
from tests.stores.postgres import live as postgres
from tests.stores.redis.live import PATIENT_MS, new_key, url_of

WAITER = """
import sys
from penstock import rate_limit, slots
url, prefix, name, path = sys.argv[1:]
limiter = rate_limit(slots(1), store=url, prefix=prefix)
with limiter.acquire("k", timeout=60):
    with open(path, "a") as log:
        print(name, file=log)
limiter.close()
"""

# The same slot beside a rate, which it waits for as part of several limits.
WAITER_FOR_SEVERAL = """
import sys
from penstock import Limits, slots
url, prefix, name, path = sys.argv[1:]
limits = Limits({"flight": slots(1), "rate": "1000/second"}, store=url, prefix=prefix)
with limits.acquire({"flight": "k", "rate": "k"}, timeout=60):
    with open(path, "a") as log:
        print(name, file=log)
limits.close()
"""


class Queue:
    """A slot for one, held by us, and processes that wait for it."""

    def __init__(self, url: str, folder: Path, several: bool) -> None:
        self.url, self.prefix, self.path = url, new_key(), folder / "served"
        self.waits_by = WAITER_FOR_SEVERAL if several else WAITER
        pool = f"{self.prefix}:flight" if several else self.prefix
        self.limiter = rate_limit(slots(1), store=open_store(url), prefix=pool)
        self.held = self.limiter.reserve("k")
        self.waiters: list[subprocess.Popen[bytes]] = []

    def kept(self) -> int:
        """How many slots and tickets the state holds."""

        def run(state: Any, _now: int, _cost: int) -> Outcome[int]:
            return Outcome(state, len(state or ()), 0, False)

        look: Transform[int] = Transform(self.limiter.strategy, "peek", run, lambda *_: 0)
        now = self.limiter.clock.now()
        return self.limiter.store.apply(f"{self.limiter.prefix}:k", look, now, 1)

    def join(self, name: str) -> subprocess.Popen[bytes]:
        """One more waiter, known to the store before this returns."""
        command = [sys.executable, "-c", self.waits_by, self.url, self.prefix, name, str(self.path)]
        self.waiters.append(subprocess.Popen(command))
        self.expect(len(self.waiters) + 1)
        return self.waiters[-1]

    def expect(self, count: int) -> None:
        def there() -> None:
            if self.kept() != count:
                raise NotReady(f"{self.kept()} slots and tickets")

        eventually(there, within=30, what=f"{count} slots and tickets")

    def served(self) -> list[str]:
        for waiter in self.waiters:
            waiter.wait(60)
        return self.path.read_text().split()


@contextmanager
def queue(url: str, folder: Path, *, several: bool = False) -> Iterator[Queue]:
    made = Queue(url, folder, several)
    try:
        yield made
    finally:
        for waiter in made.waiters:
            waiter.kill()
            waiter.wait()
        made.limiter.store.close()


@pytest.fixture(params=["valkey", "postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/slots.db?timeout_ms={PATIENT_MS}"
    if request.param == "postgres":
        return postgres.url_of(postgres.new_table(), timeout_ms=PATIENT_MS)
    return f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"


def test_processes_are_served_in_the_order_of_coming(url: str, tmp_path: Path) -> None:
    with queue(url, tmp_path) as line:
        for name in "abcd":
            line.join(name)
        assert line.held.cancel()
        assert line.served() == list("abcd")
        assert line.limiter.peek("k").remaining == 1


@pytest.mark.parametrize("url", ["valkey", "sqlite"], indirect=True)
def test_processes_that_wait_for_several_limits_are_served_in_that_order_too(
    url: str, tmp_path: Path
) -> None:
    with queue(url, tmp_path, several=True) as line:
        for name in "abc":
            line.join(name)
        assert line.held.cancel()
        assert line.served() == list("abc")
        assert line.kept() == 0


def test_who_waits_for_a_rate_holds_up_nobody_who_wants_the_same_slot() -> None:
    """It has no ticket then, since a slot is free for it."""
    store = MemoryStore()
    strategies = {"flight": slots(1), "rate": fixed_window(1, 3_600_000)}
    one, other = (Limits(strategies, store=store, prefix="p") for _ in range(2))
    with one.reserve({"flight": "k", "rate": "busy"}):
        for limits in (one, other):
            with pytest.raises(RateLimitExceededError):
                limits.acquire({"flight": "k", "rate": "busy"}, timeout=0.12)
    waiting = threading.Thread(target=_in_vain, args=(one, {"flight": "k", "rate": "busy"}))
    waiting.start()
    try:
        for _ in range(20):
            with other.acquire({"flight": "k", "rate": new_key()}, timeout=10):
                time.sleep(0.01)
    finally:
        waiting.join()


def _in_vain(limits: Limits, keys: dict[str, str]) -> None:
    with pytest.raises(RateLimitExceededError):
        limits.acquire(keys, timeout=0.5)


def test_who_gives_up_on_several_limits_leaves_no_ticket(tmp_path: Path) -> None:
    url = f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"
    keys = {"flight": "k", "rate": "k"}
    with queue(url, tmp_path, several=True) as line:
        strategies: dict[str, Any] = {"flight": slots(1), "rate": "1000/second"}
        limits = Limits(strategies, store=url, prefix=line.prefix)
        with limits, pytest.raises(RateLimitExceededError):
            limits.acquire(keys, timeout=0.12)
        assert line.kept() == 1

        async def main() -> None:
            async with Limits(strategies, store=url, prefix=line.prefix) as limits:
                with pytest.raises(RateLimitExceededError):
                    await limits.aacquire(keys, timeout=0.12)

        asyncio.run(main())
        assert line.kept() == 1


def test_who_is_killed_while_it_waits_holds_nobody_up_for_long(tmp_path: Path) -> None:
    url = f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"
    with queue(url, tmp_path) as line:
        first = line.join("a")
        line.join("b")
        first.kill()
        assert line.held.cancel()
        assert line.served() == ["b"]


def test_who_gives_up_leaves_no_ticket(url: str, tmp_path: Path) -> None:
    with queue(url, tmp_path) as line:
        with pytest.raises(RateLimitExceededError):
            line.limiter.acquire("k", timeout=0.12)
        assert line.kept() == 1

        async def main() -> None:
            async with rate_limit(slots(1), store=url, prefix=line.prefix) as limiter:
                with pytest.raises(RateLimitExceededError):
                    await limiter.aacquire("k", timeout=0.12)

        asyncio.run(main())
        assert line.kept() == 1
        assert line.held.cancel()
        assert line.kept() == 0


@pytest.mark.parametrize("several", [False, True])
def test_a_task_that_is_cancelled_while_it_waits_leaves_no_ticket(
    url: str, tmp_path: Path, several: bool
) -> None:
    """Others would find a place in front of them for two seconds."""
    with queue(url, tmp_path, several=several) as line:

        async def main() -> None:
            keys: Any = {"flight": "k", "rate": "k"} if several else "k"
            async with _slot_for_one(url, line.prefix, several) as limiter:
                waiting = asyncio.create_task(limiter.aacquire(keys))
                while line.kept() != 2:
                    assert not waiting.done()
                    await asyncio.sleep(0.01)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting

        asyncio.run(main())
        assert line.kept() == 1


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("call", ["areserve", "aacquire"])
def test_a_task_that_is_cancelled_while_the_store_is_asked_holds_no_slot(
    url: str, tmp_path: Path, call: str, several: bool
) -> None:
    """It has no charge to give back, and its slot would be gone for a ttl."""
    with queue(url, tmp_path, several=several) as line:
        assert line.held.cancel()

        async def main() -> None:
            keys: Any = {"flight": "k", "rate": "k"} if several else "k"
            async with _slot_for_one(url, line.prefix, several) as limiter:
                assert await (await getattr(limiter, call)(keys)).acancel()
                for turns in range(40):
                    asking = asyncio.create_task(getattr(limiter, call)(keys))
                    for _ in range(turns % 5):
                        await asyncio.sleep(0)
                    if turns % 2:
                        await asyncio.sleep(turns / 40_000)
                    asking.cancel()
                    for charge in await asyncio.gather(asking, return_exceptions=True):
                        if not isinstance(charge, BaseException):
                            assert await charge.acancel()

        asyncio.run(main())
        assert line.kept() == 0


def _slot_for_one(url: str, prefix: str, several: bool) -> Any:
    if not several:
        return rate_limit(slots(1), store=url, prefix=prefix)
    limits: dict[str, Any] = {"flight": slots(1), "rate": "100000/second"}
    return Limits(limits, store=url, prefix=prefix)


@pytest.mark.parametrize("several", [False, True])
def test_threads_and_tasks_of_one_limiter_wait_and_give_up_side_by_side(
    url: str, several: bool
) -> None:
    """Never more than the limit at once, and nothing is left of those who gave up."""
    keys: Any = {"flight": "k", "rate": "k"} if several else "k"
    limiter = _slot_for_one(url, f"{{{new_key()}}}", several)
    lock, turns = threading.Lock(), 5

    def alone(pause: Any) -> Any:
        assert lock.acquire(blocking=False), "two hold the only slot"
        try:
            return pause()
        finally:
            lock.release()

    def by_thread() -> None:
        for turn in range(turns):
            timeout = 0.06 if turn % 2 else 60
            with suppress(RateLimitExceededError), limiter.acquire(keys, timeout=timeout):
                alone(lambda: time.sleep(0.002))

    async def by_task() -> None:
        for turn in range(turns):
            timeout = 0.06 if turn % 2 else 60
            with suppress(asyncio.TimeoutError):
                async with await asyncio.wait_for(limiter.aacquire(keys), timeout):
                    alone(lambda: time.sleep(0.002))

    async def main() -> None:
        async with limiter:
            threads = [asyncio.to_thread(by_thread) for _ in range(3)]
            await asyncio.gather(*threads, *[by_task() for _ in range(3)])
            async with await limiter.aacquire(keys, timeout=0):
                pass

    asyncio.run(asyncio.wait_for(main(), 60))
