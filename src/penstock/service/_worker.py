"""One of several workers: a serving process that a supervisor keeps.

Its policies come from the supervisor, at the start and whenever they change. Once a second it tells
what it has counted, which is also how the supervisor knows that it is alive. It stops when the
supervisor closes the channel, by intention or by its own end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections import deque
from dataclasses import dataclass

from ..config import PolicyFile
from ..config._loading import import_modules
from ..core._errors import ConfigInvalidError, PenstockError, QueueFullError, UnsupportedError
from ._logs import banner, set_up_logs
from ._options import ServeOptions
from ._reloading import in_slices
from ._running import Running, ignore_hangup, run_loop, until_told
from ._totals import Channel, Counted

__all__ = [
    "REPORT_S",
    "Failed",
    "Hangup",
    "Started",
    "TakenUp",
    "Totalled",
    "Unreadable",
    "WorkerReport",
    "work",
]


REPORT_S = 1.0
"""How often a worker tells what it has counted."""

_TOTAL_S = 5.0
_MAX_UNTAKEN = 1 << 23

_log = logging.getLogger("penstock.serve")


@dataclass(frozen=True, slots=True)
class Started:
    """It serves; `lines` say what."""

    lines: list[str]


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a worker does not serve; `mistake`: no waiting will mend it; `again`: the next one may
    well serve, since this one was ended by something else, without a word."""

    problem: str
    mistake: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class TakenUp:
    """It serves the policies with this digest."""

    digest: str


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What it has counted; `wants_total` asks for the sums over all workers."""

    counted: Counted
    wants_total: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """From the supervisor: why the policies on the disk cannot be served."""

    problem: str


@dataclass(frozen=True, slots=True)
class Hangup:
    """From the supervisor: read the certificates again."""


@dataclass(frozen=True, slots=True)
class Totalled:
    """From the supervisor: what all workers have counted."""

    body: bytes


def work(options: ServeOptions, end: socket.socket) -> None:
    """The life of a worker. `end` leads to the supervisor."""
    # To hear of it, and to read the policies again, is the supervisor's business.
    ignore_hangup()
    set_up_logs(options.log_format)
    sys.exit(run_loop(lambda: _serve(options, end)))


async def _serve(options: ServeOptions, end: socket.socket) -> int:
    stop = asyncio.Event()
    # A signal stops it, however often it comes: how long that may take is the supervisor's to say.
    told = asyncio.ensure_future(until_told(stop, lambda: None))
    channel = await Channel.over(end)
    worker = _Worker(options, channel)
    try:
        running = await worker.open()
    except EOFError:
        return 1
    except PenstockError as error:
        mistake = isinstance(error, (ConfigInvalidError, UnsupportedError))
        channel.send(Failed(str(error), mistake))
        await channel.aclose()
        return 1
    chores = [asyncio.ensure_future(chore) for chore in (worker.listen(stop), worker.report())]
    await told
    await running.close()
    # Until here: to answer what is being asked may take longer than it may be silent.
    for chore in chores:
        chore.cancel()
    return 0


class _Worker:
    """What passes between a serving process and its supervisor."""

    def __init__(self, options: ServeOptions, channel: Channel) -> None:
        self._options = options
        self._channel = channel
        self._told: dict[str, tuple[int, ...]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._wanted: deque[asyncio.Future[bytes]] = deque()

    async def open(self) -> Running:
        """Serve the policies that the supervisor names first."""
        import_modules(self._options.imports)
        file: PolicyFile = await self._channel.receive()
        self._running = running = Running(self._options, file, self)
        await running.open()
        lines = banner(self._options, running.service.policies, file.warnings)
        self._channel.send(Started(lines))
        return running

    async def listen(self, stop: asyncio.Event) -> None:
        """Do what the supervisor says, until it says no more."""
        try:
            while True:
                await self._obey(await self._channel.receive())
        except EOFError:
            return
        finally:
            stop.set()

    async def _obey(self, message: object) -> None:
        if isinstance(message, PolicyFile):
            await self._take_up(message)
        elif isinstance(message, Unreadable):
            self._running.service.reload_failed(message.problem)
        elif isinstance(message, Hangup):
            self._running.read_certificates()
        elif isinstance(message, Totalled):
            # In the order in which they were asked for. A caller that has left is cancelled.
            wanted = self._wanted.popleft()
            if not wanted.done():
                wanted.set_result(message.body)

    async def _take_up(self, file: PolicyFile) -> None:
        service = self._running.service
        try:
            await service.take_up(file)
        except Exception as error:
            service.reload_failed(f"{file.source}: {type(error).__name__}: {error}")
            _log.exception("the policies before it are served on")
            return
        self._channel.send(TakenUp(file.digest))

    async def report(self) -> None:
        """Tell what was counted, again and again."""
        while True:
            await asyncio.sleep(REPORT_S)
            # A supervisor that is busy reads it later.
            if self._channel.untaken_bytes < _MAX_UNTAKEN:
                await self._tell()

    async def total(self) -> bytes:
        """What all workers have counted. What is shown was told before: see `Totals`."""
        wanted: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # A client that goes away in between must not take with it what was to be told.
        await asyncio.shield(self._tell(wanted))
        try:
            return await asyncio.wait_for(wanted, _TOTAL_S)
        except asyncio.TimeoutError:
            raise QueueFullError("the supervisor, which adds up, is busy; ask again") from None

    async def _tell(self, wanted: asyncio.Future[bytes] | None = None) -> None:
        async with self._one_at_a_time:
            changes = self._running.service.metrics.changes(self._told)
            counted = Counted(dict(await in_slices(changes)), self._running.counts())
            if wanted is not None:
                self._wanted.append(wanted)
            self._channel.send(WorkerReport(counted, wanted is not None))
