"""`serve`: runs a service in this process or, with several workers, under a supervisor.

The supervisor serves no requests itself. It starts the workers, which share the ports, replaces a
worker that dies or falls silent, follows the policy file for all of them, and keeps their metrics.
It has a channel to each worker. A worker stops when its channel is closed, by the supervisor or by
its end. So a signal to the whole process group, as sent by Ctrl-C and service managers, has the
same effect on a worker as one to the supervisor alone, and is not taken for a second signal. The
second signal, to the supervisor, ends the workers at once.

A worker reports its metrics once a second. One that does not for SILENT_S is stopped or stuck,
while the system still hands connections to it: it is killed, which frees its share of the ports.
Only time in which the supervisor itself was running counts, so it does no harm if the machine
sleeps or the whole process group is stopped.

Workers get their policies from the supervisor, so one that dies while the file on the disk is
invalid is replaced by one that serves the last valid file.

A worker that dies before it serves, killed or out of memory, is replaced like any other. The
service ends at its start if a worker reports why it cannot serve, or after START_TRIES attempts
per worker without a report if no worker has ever served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import pickle
import socket
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from ..config import PolicyFile
from ..core._errors import ConfigInvalidError, PenstockError
from ._channel import (
    Channel,
    Failed,
    Hangup,
    Started,
    TakenUp,
    Totalled,
    Unreadable,
    WorkerReport,
)
from ._logs import banner, print_banner, set_up_logs
from ._options import ServeOptions
from ._ports import require_free_ports
from ._reloading import Reloader, heard
from ._running import Running, fill_standard_streams, ignore_hangup, run_loop, until_told
from ._totals import Totals
from ._worker import work

__all__ = [
    "SILENT_S",
    "START_TRIES",
    "Supervisor",
    "serve",
]


SILENT_S = 5.0
"""How long a worker may be silent before it is replaced."""

START_TRIES = 3
"""How many attempts to start a worker may end without a report before the service gives up, unless
another worker has served."""

_START_S = 30.0
_RESTART_S = 1.0
_KILL_AFTER_S = 5.0
_LOOK_S = 0.1
_LAST_WORDS_S = 1.0

_log = logging.getLogger("penstock.serve")


@dataclass(slots=True, eq=False)
class _WorkerProcess:
    """A worker as the supervisor knows it. `start` is its first report: that it serves, or why not.
    `silent_s` is the time since its last report."""

    process: BaseProcess
    channel: Channel
    start: asyncio.Future[Started | Failed]
    listening: asyncio.Future[None] = field(init=False)
    silent_s: float = 0.0


class Supervisor:
    """Keeps the configured number of workers running."""

    def __init__(self, options: ServeOptions, file: PolicyFile) -> None:
        self._options = options
        self.file: PolicyFile = file
        self._fresh: PolicyFile | None = None
        self._problem = ""
        self._totals = Totals()
        self._spawn = multiprocessing.get_context("spawn")
        self._workers: dict[int, _WorkerProcess] = {}
        self._served: set[int] = set()
        self._unsaid = 0
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        told = asyncio.ensure_future(until_told(self._stopping, self._end_at_once))
        # Lets the task run, so that the signal handlers are set before the first worker starts.
        await asyncio.sleep(0)
        ignore_hangup()
        self._start_up: asyncio.Future[Started | Failed] = told.get_loop().create_future()
        places = range(self._options.workers)
        chores = [asyncio.ensure_future(self._keep(place)) for place in places]
        hangups = contextlib.ExitStack()
        try:
            await asyncio.wait((told, self._start_up), return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                print_banner(self._options, _lines_of(self._start_up.result()))
            if self._options.tls is not None:
                hangups.enter_context(heard(lambda: self._tell_all(Hangup())))
            if self._options.config is not None:
                reloader = Reloader(self, self._options.config, accept=self._options.check_policies)
                chores.append(asyncio.ensure_future(reloader.run()))
            await told
        finally:
            hangups.close()
            for chore in (told, *chores):
                chore.cancel()
            await self._stop_all()
        _log.info("stopped")
        return 0

    async def take_up(self, file: PolicyFile) -> None:
        """Send policies to all workers. Once one serves them, new workers start with them."""
        self._fresh, self._problem = file, ""
        self._tell_all(file)

    def reload_failed(self, problem: str) -> None:
        """Tell all workers why the policy file cannot be served."""
        self._problem = problem
        self._tell_all(Unreadable(problem))

    def _tell_all(self, message: object) -> None:
        packed = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for worker in self._workers.values():
            worker.channel.send_packed(packed)

    async def _start(self) -> _WorkerProcess:
        with contextlib.ExitStack() as failing:
            ours, theirs = map(failing.enter_context, socket.socketpair())
            process = self._spawn.Process(target=work, args=(self._options, theirs), daemon=True)
            process.start()
            theirs.close()
            channel = await Channel.over(ours)
            failing.pop_all()
        worker = _WorkerProcess(process, channel, asyncio.get_running_loop().create_future())
        worker.listening = asyncio.ensure_future(self._listen(worker))
        channel.send(self.file)
        if self._fresh is not None:
            channel.send(self._fresh)
        if self._problem:
            channel.send(Unreadable(self._problem))
        return worker

    async def _listen(self, worker: _WorkerProcess) -> None:
        """Receive the messages of a worker until it is gone."""
        with contextlib.suppress(EOFError):
            while True:
                message = await worker.channel.receive()
                worker.silent_s = 0.0
                self._hear(worker, message)
        if not worker.start.done():
            worker.start.set_result(Failed("it ended without a report", again=True))

    def _hear(self, worker: _WorkerProcess, message: object) -> None:
        if isinstance(message, WorkerReport):
            self._totals.take(worker, message.counted)
            if message.wants_total:
                worker.channel.send(Totalled(self._totals.text().encode()))
        elif isinstance(message, TakenUp):
            if self._fresh is not None and self._fresh.digest == message.digest:
                self.file, self._fresh = self._fresh, None
        elif isinstance(message, (Started, Failed)):
            worker.start.set_result(message)

    async def _keep(self, place: int) -> None:
        """Start a worker, and another one whenever it dies or falls silent; with a pause, so that a
        permanent failure does not cause a busy loop."""
        while True:
            try:
                worker = self._workers[place] = await self._start()
            except OSError as error:
                # No process, memory or file left; a later attempt may succeed.
                _log.error("no worker could be started: %s", error)
                self._judge(place, Failed(str(error), again=True))
            else:
                self._judge(place, await _started(worker))
                await self._over(worker)
                await self._part_with(worker)
            await asyncio.sleep(_RESTART_S)

    def _judge(self, place: int, start: Started | Failed) -> None:
        """Decide whether the service is up, or has to give up."""
        if isinstance(start, Started):
            self._served.add(place)
            if len(self._served) < self._options.workers:
                return
        elif start.again:
            self._unsaid += 1
            if self._served or self._unsaid < START_TRIES * self._options.workers:
                return
        if not self._start_up.done():
            self._start_up.set_result(start)
        elif isinstance(start, Failed):
            _log.error("a replacement worker could not start: %s", start.problem)

    async def _over(self, worker: _WorkerProcess) -> None:
        """Wait for the worker's end, and kill it if it is silent for too long."""
        process = worker.process
        while process.is_alive():
            await asyncio.sleep(_LOOK_S)
            worker.silent_s += _LOOK_S
            if worker.silent_s >= SILENT_S:
                _log.error("worker %s has been silent for %g s", process.pid, SILENT_S)
                process.kill()
                await _ended(process)

    async def _part_with(self, worker: _WorkerProcess) -> None:
        """Receive the last messages of a worker that has ended, and keep its counters."""
        await asyncio.wait((worker.listening,), timeout=_LAST_WORDS_S)
        worker.listening.cancel()
        worker.channel.close()
        self._totals.retire(worker, self.file.policies)
        pid, code = worker.process.pid, worker.process.exitcode
        _log.error("worker %s ended with exit code %s and is replaced", pid, code)

    async def _stop_all(self) -> None:
        for worker in self._workers.values():
            worker.channel.close()
        wait_s = self._options.drain_s + _KILL_AFTER_S
        waits = [_ended(worker.process) for worker in self._workers.values()]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), wait_s)
        self._kill_all()

    def _end_at_once(self) -> None:
        self._kill_all()
        raise SystemExit(130)

    def _kill_all(self) -> None:
        for worker in self._workers.values():
            if worker.process.is_alive():
                worker.process.kill()


def _lines_of(start: Started | Failed) -> list[str]:
    """The lines of the banner; raises if the service could not start."""
    if isinstance(start, Started):
        return start.lines
    kind = ConfigInvalidError if start.mistake else PenstockError
    raise kind(f"a worker could not start: {start.problem}")


async def _started(worker: _WorkerProcess) -> Started | Failed:
    """Wait until it serves, and kill it if that takes too long."""
    try:
        return await asyncio.wait_for(asyncio.shield(worker.start), _START_S)
    except asyncio.TimeoutError:
        _log.error("worker %s has not started within %g s", worker.process.pid, _START_S)
        worker.process.kill()
        return Failed(f"not within {_START_S:g} s", again=True)


async def _ended(process: BaseProcess) -> None:
    while process.is_alive():
        await asyncio.sleep(_LOOK_S / 2)


def serve(options: ServeOptions) -> int:
    """Serve until stopped by a signal. Returns the exit code; raises `config_invalid` if the
    options are invalid."""
    fill_standard_streams()
    file = options.check()
    options.token()
    options.fleet_secret()
    set_up_logs(options.log_format)
    if options.workers == 1:
        return run_loop(lambda: _serve_here(options, file))
    require_free_ports(options)
    return run_loop(Supervisor(options, file).run)


async def _serve_here(options: ServeOptions, file: PolicyFile) -> int:
    stop = asyncio.Event()
    ignore_hangup()
    running = Running(options, file)
    await running.open()
    print_banner(options, banner(options, running.service.policies, file.warnings))
    await until_told(stop)
    await running.close()
    _log.info("stopped")
    return 0
