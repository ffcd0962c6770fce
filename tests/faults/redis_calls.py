"""Calls of either mode on a RedisStore that is about to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Decision, Limiter, StoreUnavailableError, gcra, rate_limit
from penstock.stores.redis import RedisStore

TIMEOUT_MS = 150
# What a slow machine may add to a deadline before it counts as a hang.
SLACK_S = 0.35
LONG_MS = 864_000_000


class Either:
    """The same calls in either mode, from one plain test."""

    def __init__(self, mode: str) -> None:
        self.is_async = mode == "async"
        self.loop = asyncio.new_event_loop()
        self.stores: list[RedisStore] = []

    def limiter(self, url: str, strategy: Any = None, prefix: str = "", **options: Any) -> Limiter:
        store = RedisStore.from_url(url, **{"timeout_ms": TIMEOUT_MS, **options})
        self.stores.append(store)
        return rate_limit(strategy or gcra(50, LONG_MS), store=store, prefix=prefix)

    def check(self, limiter: Limiter, key: str) -> Decision:
        if not self.is_async:
            return limiter.check(key)
        return self.loop.run_until_complete(limiter.acheck(key))

    def remaining(self, limiter: Limiter, key: str) -> int:
        if not self.is_async:
            return limiter.peek(key).remaining
        return self.loop.run_until_complete(limiter.apeek(key)).remaining

    def close(self) -> None:
        for store in self.stores:
            self.loop.run_until_complete(store.aclose())
        self.loop.close()


def fails_in_time(call: Callable[[], Any], match: str) -> None:
    """The call ends with our error, about when its deadline says."""
    start = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=match):
        call()
    assert time.monotonic() - start < TIMEOUT_MS / 1000 + SLACK_S


def retry(call: Callable[[], Decision], within_s: float = 5.0) -> Decision:
    """The first answer; errors on the way there must be ours."""
    give_up = time.monotonic() + within_s
    while True:
        try:
            return call()
        except StoreUnavailableError:  # noqa: PERF203
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)
