"""Limiters of every transport, sync and async, behind one way to ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.client import ServiceLimiter
from tests.client.serving import TOKEN, TRANSPORTS

WAYS = [(transport, way) for transport in TRANSPORTS for way in ("sync", "async")]


class Asked:
    """A limiter, asked by blocking calls or by awaited ones: the answers must not differ."""

    def __init__(self, limiter: ServiceLimiter, loop: asyncio.AbstractEventLoop | None) -> None:
        self.limiter = limiter
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self.on(self.limiter, name, *args, **options)

    def on(self, target: Any, name: str, *args: Any, **options: Any) -> Any:
        if self._loop is None:
            return getattr(target, name)(*args, **options)
        return self._loop.run_until_complete(getattr(target, f"a{name}")(*args, **options))

    def end(self) -> None:
        self.on(self.limiter, "close")
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


@contextmanager
def asking(url: str, policy: str, way: str, **options: Any) -> Iterator[Asked]:
    loop = asyncio.new_event_loop() if way == "async" else None
    limiter = ServiceLimiter(url, policy, **{"token": TOKEN, "timeout_ms": 10_000, **options})
    asked = Asked(limiter, loop)
    try:
        yield asked
    finally:
        asked.end()
