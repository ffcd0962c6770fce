"""Waiting for a slot, in turn with other processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import RateLimitExceededError, rate_limit, slots
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


class Queue:
    """A slot for one, held by us, and processes that wait for it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.prefix, self.path = url, new_key(), folder / "served"
        self.limiter = rate_limit(slots(1), store=open_store(url), prefix=self.prefix)
        self.held = self.limiter.reserve("k")
        self.waiters: list[subprocess.Popen[bytes]] = []

    def kept(self) -> int:
        """How many slots and tickets the state holds."""

        def run(state: Any, _now: int, _cost: int) -> Outcome[int]:
            return Outcome(state, len(state or ()), 0, False)

        look: Transform[int] = Transform(self.limiter.strategy, "peek", run, lambda *_: 0)
        now = self.limiter.clock.now()
        return self.limiter.store.apply(f"{self.prefix}:k", look, now, 1)

    def join(self, name: str) -> subprocess.Popen[bytes]:
        """One more waiter, known to the store before this returns."""
        command = [sys.executable, "-c", WAITER, self.url, self.prefix, name, str(self.path)]
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
def queue(url: str, folder: Path) -> Iterator[Queue]:
    made = Queue(url, folder)
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
