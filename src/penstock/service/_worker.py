"""A worker: one of several serving processes under a supervisor.

It gets its policies from the supervisor, at the start and whenever they change. Once a second it
reports its metrics, by which the supervisor also knows that it is alive. It stops when the
supervisor closes the channel, or ends.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections import deque

from ..config import PolicyFile
from ..config._loading import import_modules
from ..core._errors import ConfigInvalidError, PenstockError, QueueFullError, UnsupportedError
from ._channel import (
    Channel,
    Counted,
    Failed,
    Hangup,
    Started,
    TakenUp,
    Totalled,
    Unreadable,
    WorkerReport,
)
from ._logs import banner, set_up_logs
from ._options import ServeOptions
from ._reloading import in_slices
from ._running import Running, ignore_hangup, run_loop, until_told

__all__ = ["REPORT_S", "work"]


REPORT_S = 1.0
"""How often a worker reports its metrics."""

_TOTAL_S = 5.0
_MAX_UNTAKEN = 1 << 23

_log = logging.getLogger("penstock.serve")


def work(options: ServeOptions, end: socket.socket) -> None:
    """The main function of a worker. `end` is its socket to the supervisor."""
    # The supervisor handles SIGHUP.
    ignore_hangup()
    set_up_logs(options.log_format)
    sys.exit(run_loop(lambda: _serve(options, end)))


async def _serve(options: ServeOptions, end: socket.socket) -> int:
    stop = asyncio.Event()
    # A second signal has no further effect: the supervisor bounds how long stopping may take.
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
    # Not before: answering open requests may take longer than a worker may be silent.
    for chore in chores:
        chore.cancel()
    return 0


class _Worker:
    """Exchanges messages with the supervisor."""

    def __init__(self, options: ServeOptions, channel: Channel) -> None:
        self._options = options
        self._channel = channel
        self._told: dict[str, tuple[int, ...]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._wanted: deque[asyncio.Future[bytes]] = deque()

    async def open(self) -> Running:
        """Serve the first policies that the supervisor sends."""
        import_modules(self._options.imports)
        file: PolicyFile = await self._channel.receive()
        self._running = running = Running(self._options, file, self)
        await running.open()
        lines = banner(self._options, running.service.policies, file.warnings)
        self._channel.send(Started(lines))
        return running

    async def listen(self, stop: asyncio.Event) -> None:
        """Handle the messages of the supervisor until it closes the channel."""
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
            # In the order of the requests. If the client has left, the future is cancelled.
            wanted = self._wanted.popleft()
            if not wanted.done():
                wanted.set_result(message.body)

    async def _take_up(self, file: PolicyFile) -> None:
        service = self._running.service
        try:
            await service.take_up(file)
        except Exception as error:
            service.reload_failed(f"{file.source}: {type(error).__name__}: {error}")
            _log.exception("reload failed, the previous policies are still served")
            return
        self._channel.send(TakenUp(file.digest))

    async def report(self) -> None:
        """Report the metrics once a second."""
        while True:
            await asyncio.sleep(REPORT_S)
            # Skipped while the supervisor is too busy to read.
            if self._channel.untaken_bytes < _MAX_UNTAKEN:
                await self._tell()

    async def total(self) -> bytes:
        """The metrics of all workers, after reporting those of this one: see `Totals`."""
        wanted: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # Shielded: a client that leaves must not cancel the report.
        await asyncio.shield(self._tell(wanted))
        try:
            return await asyncio.wait_for(wanted, _TOTAL_S)
        except asyncio.TimeoutError:
            raise QueueFullError("the supervisor is too busy to add up metrics; retry") from None

    async def _tell(self, wanted: asyncio.Future[bytes] | None = None) -> None:
        async with self._one_at_a_time:
            changes = self._running.service.metrics.changes(self._told)
            counted = Counted(dict(await in_slices(changes)), self._running.counts())
            if wanted is not None:
                self._wanted.append(wanted)
            self._channel.send(WorkerReport(counted, wanted is not None))
