"""Several workers, which share the ports, and the process that keeps them.

It serves nothing itself: it starts the workers, passes a hangup on, and replaces one that dies. A
line leads from it to each of them. A worker stops when its line is closed, by the supervisor or by
its end; so a signal that reaches the whole process group, as Ctrl-C and service managers send it,
is the same to a worker as one that reaches the supervisor alone, and is never taken for a second
one. The second signal is the supervisor's to obey: it ends the workers at once.

A worker is given its policies and tells of those that it serves after a reload, so one that dies
while a bad file lies on the disk is replaced like any other, by one that serves the last good file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from ..config import PolicyFile
from ..core.errors import ConfigInvalidError, PenstockError, UnsupportedError
from .greeting import greet
from .http import Pool
from .logs import set_up_logs
from .options import ServeOptions
from .registry import Policy
from .running import Running, ignore_hangup, run_loop, until_told

__all__ = ["Supervisor"]

_START_S = 30.0
_RESTART_S = 1.0
_KILL_AFTER_S = 5.0
_SIGNAL_S = 0.1

_log = logging.getLogger("penstock.serve")


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a worker does not serve; `mistake`: no waiting will mend it."""

    text: str
    mistake: bool = False


_Report = dict[str, Policy] | _Failure


@dataclass(slots=True)
class _Worker:
    """`report` is what it said when it had started: its policies, or why it does not serve."""

    process: BaseProcess
    line: Connection
    report: asyncio.Future[_Report]


class Supervisor:
    """Keeps as many workers as were asked for."""

    def __init__(self, options: ServeOptions, file: PolicyFile, folder: str) -> None:
        self._options = options
        self._file = file
        self._folder = folder
        self._spawn = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        told = asyncio.ensure_future(until_told(self._stopping, self._end_at_once))
        # Set up with the loop at work, so that the handlers are there before the first worker.
        await asyncio.sleep(0)
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._pass_on_hangup)
        chores: list[asyncio.Future[None]] = []
        try:
            policies = await self._start_all()
            if not self._stopping.is_set():
                greet(self._options, policies)
            chores = [asyncio.ensure_future(self._keep(i)) for i in range(len(self._workers))]
            await told
        finally:
            for chore in (told, *chores):
                chore.cancel()
            await self._stop_all()
        _log.info("stopped")
        return 0

    async def _start_all(self) -> dict[str, Policy]:
        self._workers = [self._start(index) for index in range(self._options.workers)]
        reports = [await _reported(worker) for worker in self._workers]
        served = [report for report in reports if isinstance(report, dict)]
        failures = [report for report in reports if isinstance(report, _Failure)]
        if failures and not await self._is_told():
            raise _error_of(failures[0])
        return served[0] if served else {}

    async def _is_told(self) -> bool:
        """Whether it is to stop, which a worker may have heard a moment before: the signal to a
        group ends one that is still starting."""
        await asyncio.sleep(_SIGNAL_S)
        return self._stopping.is_set()

    def _start(self, index: int) -> _Worker:
        ours, theirs = self._spawn.Pipe()
        pool = Pool(self._folder, str(index))
        args = (self._options, _portable(self._file), pool, theirs)
        process = self._spawn.Process(target=_work, args=args, daemon=True)
        process.start()
        theirs.close()
        loop = asyncio.get_running_loop()
        worker = _Worker(process, ours, loop.create_future())
        loop.add_reader(ours.fileno(), self._hear, worker)
        return worker

    def _hear(self, worker: _Worker) -> None:
        """A worker tells how its start went, that it serves other policies than before, or, by the
        end of its line, that it is gone."""
        try:
            told = worker.line.recv()
        except (EOFError, OSError):
            told = _Failure("it ended before it could say why")
            asyncio.get_running_loop().remove_reader(worker.line.fileno())
        if isinstance(told, PolicyFile):
            self._file = told
        elif not worker.report.done():
            worker.report.set_result(told)

    def _part_with(self, worker: _Worker) -> None:
        if not worker.line.closed:
            asyncio.get_running_loop().remove_reader(worker.line.fileno())
            worker.line.close()

    async def _keep(self, index: int) -> None:
        """Replace the worker whenever it dies, after a pause, so that a fault does not spin."""
        while True:
            worker = self._workers[index]
            await _ended(worker.process)
            self._part_with(worker)
            _log.error(
                "worker %s ended with %s and is replaced",
                worker.process.pid,
                worker.process.exitcode,
            )
            await asyncio.sleep(_RESTART_S)
            self._workers[index] = self._start(index)
            report = await _reported(self._workers[index])
            if isinstance(report, _Failure):
                _log.error("its successor could not start: %s", report.text)

    async def _stop_all(self) -> None:
        for worker in self._workers:
            self._part_with(worker)
        wait_s = self._options.drain_s + _KILL_AFTER_S
        waits = [_ended(worker.process) for worker in self._workers]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), wait_s)
        self._kill_all()

    def _end_at_once(self) -> None:
        self._kill_all()
        raise SystemExit(130)

    def _kill_all(self) -> None:
        for worker in self._workers:
            if worker.process.is_alive():
                worker.process.kill()

    def _pass_on_hangup(self) -> None:
        for worker in self._workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.process.pid, signal.SIGHUP)


def _portable(file: PolicyFile) -> PolicyFile:
    """As it can be sent to another process."""
    return replace(file, policies=dict(file.policies))


def _error_of(failure: _Failure) -> PenstockError:
    kind = ConfigInvalidError if failure.mistake else PenstockError
    return kind(f"a worker could not start: {failure.text}")


async def _reported(worker: _Worker) -> _Report:
    try:
        return await asyncio.wait_for(asyncio.shield(worker.report), _START_S)
    except asyncio.TimeoutError:
        return _Failure(f"not within {_START_S:g} s")


async def _ended(process: BaseProcess) -> None:
    while process.is_alive():
        await asyncio.sleep(0.05)


def _work(options: ServeOptions, file: PolicyFile, pool: Pool, line: Connection) -> None:
    """The life of a worker. `line` leads to the supervisor."""
    set_up_logs(options.log_format)
    sys.exit(run_loop(lambda: _serve_there(options, file, pool, line)))


async def _serve_there(
    options: ServeOptions, file: PolicyFile, pool: Pool, line: Connection
) -> int:
    stop = asyncio.Event()
    # A signal stops it, however often it comes: how long that may take is the supervisor's to say.
    told = asyncio.ensure_future(until_told(stop, lambda: None))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()

    def tell(fresh: PolicyFile) -> None:
        # A long file fills the line: not a reason for requests to wait.
        loop.run_in_executor(None, _send, line, _portable(fresh))

    try:
        running = Running(options, file, pool, tell)
        await running.open()
    except PenstockError as error:
        mistake = isinstance(error, (ConfigInvalidError, UnsupportedError))
        _send(line, _Failure(str(error), mistake))
        return 1
    ignore_hangup(options)
    _send(line, dict(running.service.policies))
    _stop_with(line, stop)
    await told
    await running.close()
    return 0


_sending = threading.Lock()


def _send(line: Connection, report: _Report | PolicyFile) -> None:
    # A supervisor that is gone needs none.
    with _sending, contextlib.suppress(OSError):
        line.send(report)


def _stop_with(line: Connection, stop: asyncio.Event) -> None:
    """The supervisor never writes: the line becomes readable when its other end is closed."""
    loop, number = asyncio.get_running_loop(), line.fileno()

    def closed() -> None:
        loop.remove_reader(number)
        stop.set()

    loop.add_reader(number, closed)
