"""`serve`: from options to a running service, in this process or in several.

With one worker this process serves. With more it only watches: it starts the workers, which share
the ports, passes signals on, and replaces a worker that dies. A worker whose parent is gone stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from ..config import PolicyFile
from ..core.errors import PenstockError
from .greeting import greeting
from .http import Pool
from .logs import set_up_logs
from .options import ServeOptions
from .registry import Policy
from .running import Running, run_loop, until_told

__all__ = ["serve"]

_START_S = 30.0
_RESTART_S = 1.0
_KILL_AFTER_S = 5.0

_log = logging.getLogger("penstock.serve")


def serve(options: ServeOptions) -> int:
    """Serve until told to stop. Returns the exit code; raises `config_invalid` if it cannot."""
    file = options.check()
    options.token()
    set_up_logs(options.log_format)
    if options.workers == 1:
        return run_loop(lambda: _serve_here(options, file))
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        return run_loop(_Supervisor(options, folder).run)


async def _serve_here(options: ServeOptions, file: PolicyFile) -> int:
    stop = asyncio.Event()
    running = Running(options, file)
    await running.open()
    _ignore_hangup(options)
    _greet(options, dict(running.service.policies))
    await until_told(stop)
    await running.close()
    _log.info("stopped")
    return 0


def _ignore_hangup(options: ServeOptions) -> None:
    """A hangup means: read the policies again. Without a file there is nothing to read."""
    if options.config is None and hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _greet(options: ServeOptions, policies: dict[str, Policy]) -> None:
    lines = greeting(options, policies)
    if options.log_format == "json":
        _log.info("%s", lines[0], extra={"fields": {"serving": lines[1:]}})
        return
    # A reader that has gone away must not keep the service from starting.
    with contextlib.suppress(OSError):
        print("\n".join(lines), flush=True)


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    line: Connection


class _Supervisor:
    """Keeps as many workers as were asked for."""

    def __init__(self, options: ServeOptions, folder: str) -> None:
        self._options = options
        self._folder = folder
        self._spawn = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        told = asyncio.ensure_future(until_told(self._stopping))
        # Set up with the loop at work, so that the handlers are there before the first worker.
        await asyncio.sleep(0)
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        try:
            policies = await self._start_all()
            if policies is None:
                return 1
            _greet(self._options, policies)
            keepers = [asyncio.ensure_future(self._keep(i)) for i in range(len(self._workers))]
            await told
            for keeper in keepers:
                keeper.cancel()
        finally:
            told.cancel()
            await self._stop_all()
        _log.info("stopped")
        return 0

    async def _start_all(self) -> dict[str, Policy] | None:
        self._workers = [self._start(index) for index in range(self._options.workers)]
        reports = [await self._report(worker) for worker in self._workers]
        for report in reports:
            if not isinstance(report, dict):
                _log.error("a worker could not start: %s", report)
                return None
        first = reports[0]
        assert isinstance(first, dict)
        return first

    def _start(self, index: int) -> _Worker:
        ours, theirs = self._spawn.Pipe()
        pool = Pool(self._folder, str(index))
        args = (self._options, pool, theirs)
        process = self._spawn.Process(target=_work, args=args, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    async def _report(self, worker: _Worker) -> dict[str, Policy] | str:
        """The policies that the worker serves, or why it does not."""

        def receive() -> dict[str, Policy] | str:
            if not worker.line.poll(_START_S):
                return f"not within {_START_S:g} s"
            report: dict[str, Policy] | str = worker.line.recv()
            return report

        try:
            return await asyncio.to_thread(receive)
        except (EOFError, OSError):
            return "it ended before it could say why"

    async def _keep(self, index: int) -> None:
        """Replace the worker whenever it dies, after a pause, so that a fault does not spin."""
        while True:
            worker = self._workers[index]
            await _ended(worker.process)
            worker.line.close()
            _log.error(
                "worker %s ended with %s and is replaced",
                worker.process.pid,
                worker.process.exitcode,
            )
            await asyncio.sleep(_RESTART_S)
            self._workers[index] = self._start(index)
            report = await self._report(self._workers[index])
            if not isinstance(report, dict):
                _log.error("its successor could not start: %s", report)

    async def _stop_all(self) -> None:
        self._pass_on(signal.SIGTERM)
        wait_s = self._options.drain_s + _KILL_AFTER_S
        waits = [_ended(worker.process) for worker in self._workers]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), wait_s)
        for worker in self._workers:
            if worker.process.is_alive():
                worker.process.kill()

    def _pass_on(self, number: int) -> None:
        for worker in self._workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.process.pid, number)


async def _ended(process: BaseProcess) -> None:
    while process.is_alive():
        await asyncio.sleep(0.05)


def _work(options: ServeOptions, pool: Pool, line: Connection) -> None:
    """The life of a worker. `line` leads to the parent."""
    set_up_logs(options.log_format)
    sys.exit(run_loop(lambda: _serve_there(options, pool, line)))


async def _serve_there(options: ServeOptions, pool: Pool, line: Connection) -> int:
    stop = asyncio.Event()
    told = asyncio.ensure_future(until_told(stop))
    await asyncio.sleep(0)
    try:
        running = Running(options, options.check(), pool)
        await running.open()
    except PenstockError as error:
        line.send(str(error))
        return 1
    _ignore_hangup(options)
    line.send(dict(running.service.policies))
    # The parent never writes: the line becomes readable when it is gone.
    asyncio.get_running_loop().add_reader(line.fileno(), stop.set)
    await told
    await running.close()
    return 0
