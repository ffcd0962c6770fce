"""How a caller of either colour stands in line, and leads when it is handed the lead."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ...core.flow import Flow, adrive, drive
from ...core.store import Transform
from ..sheet import Call, telling_of_others
from .abreast import abreast
from .lines import Batch, Lines, Stand
from .memory import Memory
from .procedure import settle
from .requests import LinkError, Pause, Request, Step, unavailable

__all__ = ["AsyncCaller", "Backend", "BlockingCaller"]

# A loop holds its tasks weakly.
_tasks: set[asyncio.Task[None]] = set()


class Backend(Protocol):
    """What a caller needs of a store."""

    timeout_ms: int
    lines: Lines
    memory: Memory

    @property
    def max_record_bytes(self) -> int: ...

    def serve(self, requests: Sequence[Request], deadline: float) -> list[Any]: ...

    async def aserve(self, requests: Sequence[Request], deadline: float) -> list[Any]: ...


class _Caller:
    """One call, whose keys are run some at a time, all of them within its deadline."""

    def __init__(self, store: Backend, deadline: float) -> None:
        self._store = store
        self._lines = store.lines
        self._deadline = deadline
        self._stands: list[Stand] = []
        self._earlier: list[Call] = []

    def _enter(
        self, counts: dict[str, int], transform: Transform[Any], now: int, cost: int
    ) -> list[Batch]:
        self._earlier += [stand.call for stand in self._stands]
        self._stands = [
            Stand(key, Call([key] * count, transform, now, cost, self._deadline), self)
            for key, count in counts.items()
        ]
        return self._lines.enter(self._stands)

    def lead(self, batch: Batch) -> bool:
        raise NotImplementedError

    def notice(self) -> None:
        raise NotImplementedError

    def _answered(self) -> bool:
        return all(stand.call.done for stand in self._stands)

    def _answers(self) -> dict[str, Iterator[Any]]:
        for stand in self._stands:
            if stand.call.error is not None:
                raise self._told(stand.call.error, stand.call)
        return {stand.key: iter(stand.call.results) for stand in self._stands}

    def _told(self, error: BaseException, of: Call | None = None) -> BaseException:
        """The error, which speaks of the call `of`, with a word on all others of this caller."""
        calls = [*self._earlier, *(stand.call for stand in self._stands)]
        effects = {call.charged for call in calls if call is not of}
        for effect in (True, None):
            if effect in effects:
                return telling_of_others(error, effect)
        return error

    def _flow(self, batches: Sequence[Batch]) -> Flow[list[Step], None]:
        room, memory = self._store.max_record_bytes, self._store.memory
        flows = [settle(batch.key, batch.calls, room, memory) for batch in batches]
        return abreast(flows, [batch.fail for batch in batches])

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _nap_s(self, pauses: Sequence[Pause]) -> float:
        """How long to wait before the requests are sent; raises if nobody is left to hear."""
        seconds = max((pause.ms for pause in pauses), default=0.0) / 1000
        if seconds >= self._left_s():
            raise LinkError("no time left to ask", may_have_run=False)
        return seconds

    def _give_up(self) -> None:
        """At the deadline: those that still wait are withdrawn, the others remain in doubt."""
        in_doubt = not self._lines.withdraw(self._stands)
        if not self._answered():
            ms = self._store.timeout_ms
            error = unavailable(f"no turn at this key within {ms} ms", in_doubt=in_doubt)
            raise self._told(error)


class BlockingCaller(_Caller):
    """Leads on its own thread."""

    def __init__(self, store: Backend, deadline: float) -> None:
        super().__init__(store, deadline)
        self._bell = threading.Event()
        self._handed: deque[Batch] = deque()

    def lead(self, batch: Batch) -> bool:
        self._handed.append(batch)
        self._bell.set()
        return True

    def notice(self) -> None:
        self._bell.set()

    def run(
        self, counts: dict[str, int], transform: Transform[Any], now: int, cost: int
    ) -> dict[str, Iterator[Any]]:
        batches = self._enter(counts, transform, now, cost)
        try:
            while batches or not self._answered():
                if batches:
                    self._settle(batches)
                elif not self._bell.wait(self._left_s()):
                    self._give_up()
                self._bell.clear()
                batches = self._take()
        finally:
            self._lines.withdraw(self._stands)
            # The lead may have been handed over at the very last moment.
            if late := self._take():
                self._settle(late)
        return self._answers()

    def _take(self) -> list[Batch]:
        batches = []
        while self._handed:
            batches.append(self._handed.popleft())
        return batches

    def _settle(self, batches: list[Batch]) -> None:
        try:
            drive(self._flow(batches), self._serve)
        except BaseException as error:
            _interrupt(batches, error)
            raise
        finally:
            for batch in batches:
                self._lines.leave(batch)

    def _serve(self, steps: Sequence[Step]) -> list[Any]:
        pauses, requests = _sorted(steps)
        if (seconds := self._nap_s(pauses)) > 0:
            time.sleep(seconds)
        return _merged(steps, self._store.serve(requests, self._deadline) if requests else [])


class AsyncCaller(_Caller):
    """Leads in a task of its own, so that cancelling one caller does not fail the others."""

    def __init__(self, store: Backend, deadline: float) -> None:
        super().__init__(store, deadline)
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()
        self._leading = 0
        self._late = False

    def lead(self, batch: Batch) -> bool:
        return self._soon(self._start, [batch])

    def notice(self) -> None:
        self._soon(self._bell.set)

    def _soon(self, call: Callable[..., Any], *arguments: Any) -> bool:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return False
        return True

    async def run(
        self, counts: dict[str, int], transform: Transform[Any], now: int, cost: int
    ) -> dict[str, Iterator[Any]]:
        batches = self._enter(counts, transform, now, cost)
        if batches:
            self._start(batches)
        timer = self._loop.call_later(self._left_s(), self._expire)
        try:
            while not self._answered():
                await self._bell.wait()
                self._bell.clear()
                # Its own lead ends by the same deadline, and says more about what went wrong.
                if self._late and not self._leading:
                    self._give_up()
        finally:
            timer.cancel()
            self._lines.withdraw(self._stands)
        return self._answers()

    def _expire(self) -> None:
        self._late = True
        self._bell.set()

    def _start(self, batches: list[Batch]) -> None:
        self._leading += 1
        task = self._loop.create_task(self._settle(batches))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def _settle(self, batches: list[Batch]) -> None:
        try:
            await adrive(self._flow(batches), self._serve)
        except BaseException as error:
            _interrupt(batches, error)
            raise
        finally:
            self._leading -= 1
            for batch in batches:
                self._lines.leave(batch)

    async def _serve(self, steps: Sequence[Step]) -> list[Any]:
        pauses, requests = _sorted(steps)
        if (seconds := self._nap_s(pauses)) > 0:
            await asyncio.sleep(seconds)
        answers = await self._store.aserve(requests, self._deadline) if requests else []
        return _merged(steps, answers)


def _sorted(steps: Sequence[Step]) -> tuple[list[Pause], list[Request]]:
    pauses = [step for step in steps if isinstance(step, Pause)]
    return pauses, [step for step in steps if not isinstance(step, Pause)]


def _merged(steps: Sequence[Step], answers: list[Any]) -> list[Any]:
    """The answers of the requests, and None for each pause."""
    rest = iter(answers)
    return [None if isinstance(step, Pause) else next(rest) for step in steps]


def _interrupt(batches: Sequence[Batch], error: BaseException) -> None:
    for batch in batches:
        for call in batch.calls:
            call.charged = call.charged or None
        batch.fail(unavailable(f"interrupted by {type(error).__name__}", in_doubt=True))
