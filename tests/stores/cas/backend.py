"""A backend in a dict, whose connection fails as told: stores on it show compare-and-swap alone."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.stores.cas import (
    AnyRequest,
    CasStore,
    Conflict,
    ConnectionFailedError,
    Drop,
    Held,
    Read,
    ReadAll,
    Swap,
    SwapAll,
)

LOST = ConnectionFailedError("the reply was lost", may_have_run=True, again=True)
REFUSED = ConnectionFailedError("connection refused", may_have_run=False, again=True)
LATE = ConnectionFailedError("no reply in time", may_have_run=True)


class Records:
    """What several stores share, as several processes share a database."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.lock = threading.Lock()
        self.log: list[str] = []

    def perform(self, request: AnyRequest) -> Any:
        with self.lock:
            self.log.append(type(request).__name__)
            if isinstance(request, ReadAll):
                return [self.held.get(key) for key in request.keys]
            if isinstance(request, SwapAll):
                if any(self.held.get(one.key) != one.expected for one in request.writes):
                    return Conflict()
                for write in request.writes:
                    if isinstance(write, Swap):
                        self.held[write.key] = Held(write.record, write.version)
                    elif isinstance(write, Drop):
                        del self.held[write.key]
                return ""
            found = self.held.get(request.key)
            if isinstance(request, Read):
                return found
            if (isinstance(request, Swap) or request.expected is not None) and (
                found != request.expected
            ):
                return Conflict()
            if isinstance(request, Drop):
                self.held.pop(request.key, None)
            else:
                self.held[request.key] = Held(request.record, request.version)
            return ""


class DictCasStore(CasStore):
    """`before` and `after` may raise or answer around each request; `delay_s` is the way there."""

    most_keys_at_once = 8

    def __init__(
        self, records: Records | None = None, *, timeout_ms: int = 10_000, delay_s: float = 0.0
    ) -> None:
        super().__init__(timeout_ms)
        self.records = Records() if records is None else records
        self.delay_s = delay_s
        self.before: Callable[[AnyRequest], None] = lambda _request: None
        self.after: Callable[[AnyRequest], None] = lambda _request: None
        self.trips = 0
        self.busy: set[str] = set()

    def serve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        self._check(requests)
        time.sleep(self.delay_s)
        return self._done(requests)

    async def aserve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        self._check(requests)
        await asyncio.sleep(self.delay_s)
        return self._done(requests)

    def _check(self, requests: Sequence[AnyRequest]) -> None:
        self.trips += 1
        keys = _alone(requests)
        assert len(set(keys)) == len(keys), "one request per key and step"
        assert not self.busy.intersection(keys), "two batches of one key at once"
        self.busy.update(keys)

    def _done(self, requests: Sequence[AnyRequest]) -> list[Any]:
        self.busy.difference_update(_alone(requests))
        return [self._one(request) for request in requests]

    def _one(self, request: AnyRequest) -> Any:
        try:
            self.before(request)
            answer = self.records.perform(request)
            self.after(request)
        except ConnectionFailedError as error:
            return error
        return answer


def _alone(requests: Sequence[AnyRequest]) -> list[str]:
    """What is asked of one key at a time; batches over several keys are one, under no key."""
    several = (ReadAll, SwapAll)
    return ["" if isinstance(request, several) else request.key for request in requests]


def once(kind: Any, error: Exception, times: int = 1) -> Callable[[AnyRequest], None]:
    """Fails the first `times` requests of a kind."""
    left = deque([error] * times)

    def hook(request: AnyRequest) -> None:
        if isinstance(request, kind) and left:
            raise left.popleft()

    return hook


def lossy(rng: random.Random) -> Callable[[AnyRequest], None]:
    """Loses every third request, or its reply."""

    def hook(_request: AnyRequest) -> None:
        if rng.random() < 1 / 3:
            raise LOST

    return hook
