"""Workers that die while the service starts, and supervisors that have no means to replace them."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.service._supervisor import START_TRIES
from tests.servers import NotReady, eventually
from tests.servers.process import REPO, environment
from tests.service.http.serving import Penstock
from tests.service.http.test_workers import _says, sqlite, workers_of

IN_A_WORKER = "import multiprocessing, os, time\nif multiprocessing.parent_process() is not None:\n"
THE_FIRST_WAITS = """
    try:
        with open({file!r}, "x") as file:
            file.write(f"{{os.getpid()}}\\n")
    except FileExistsError:
        pass
    else:
        time.sleep(600)
"""
ALL_END = """
    with open({file!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    os._exit(3)
"""


class Module:
    """A module for `--import` that does in a worker what it is told to, and writes to a file."""

    def __init__(self, folder: Path, code: str) -> None:
        self.file = folder / "pids"
        (folder / "told.py").write_text(IN_A_WORKER + code.format(file=str(self.file)))
        self.flags = ["--import", "told", *sqlite(folder)]

    def pids(self) -> list[int]:
        return [int(line) for line in self.file.read_text().splitlines()]


class FromFolder(Penstock):
    """A service that finds the modules of a folder."""

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(*flags)
        self._path = os.pathsep.join((str(REPO / "src"), str(folder)))

    def popen_options(self) -> dict[str, Any]:
        return {"env": environment(PYTHONPATH=self._path)}


class Starting(Penstock):
    """A service that is left alone while it starts, but for what `meanwhile` does with its pid."""

    def __init__(self, *flags: str, meanwhile: Callable[[int], None]) -> None:
        super().__init__(*flags, grpc=True)
        self._meanwhile = meanwhile

    def _await_ready(self) -> None:
        self._meanwhile(self.pid)
        super()._await_ready()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_are_killed_while_it_starts_are_all_replaced(
    tmp_path: Path, seed: int
) -> None:
    """At any moment of the first two seconds, one of them or both."""
    chance = random.Random(seed)
    killed: set[int] = set()

    def meanwhile(pid: int) -> None:
        eventually(lambda: _has_workers(pid, 1), within=20, what="the first worker")
        moments = sorted(chance.uniform(0, 2) for _ in range(3))
        begin = time.monotonic()
        for moment in moments:
            time.sleep(max(0.0, begin + moment - time.monotonic()))
            workers = workers_of(pid)
            # Each with even chances, and at least one.
            for victim in [each for each in workers if chance.random() < 0.5] or workers[:1]:
                kill(victim)
                killed.add(victim)

    with Starting(*sqlite(tmp_path), meanwhile=meanwhile) as server:
        eventually(lambda: _has_workers(server.pid, 2), within=20, what="both workers")
        eventually(lambda: _says(server, "try:"), within=20, what="the banner")
        server.ping()
        assert killed
        assert killed.isdisjoint(workers_of(server.pid))
        assert server.process().poll() is None


def test_a_worker_that_is_killed_before_it_serves_is_replaced(tmp_path: Path) -> None:
    """While another serves already."""
    module = Module(tmp_path, THE_FIRST_WAITS)
    with FromFolder(tmp_path, *module.flags) as server:
        [waiting] = module.pids()
        assert waiting in workers_of(server.pid)
        assert "try:" not in server.log_path.read_text()
        kill(waiting)
        eventually(lambda: _says(server, "try:"), within=20, what="a successor that serves")
        assert len(workers_of(server.pid)) == 2
        assert (
            f"worker {waiting} ended with exit code -9 and is replaced"
            in server.log_path.read_text()
        )


def test_a_worker_that_served_is_replaced_though_another_has_not_started(tmp_path: Path) -> None:
    """It is kept from its own start on, and not from the last one's."""
    module = Module(tmp_path, THE_FIRST_WAITS)
    with FromFolder(tmp_path, *module.flags) as server:
        [waiting] = module.pids()
        [served] = set(workers_of(server.pid)) - {waiting}
        kill(served)
        eventually(lambda: _gone(served), within=20, what="its end")
        eventually(server.ping, within=20, what="a successor")
        assert waiting in workers_of(server.pid)
        kill(waiting)


def test_a_service_whose_workers_all_end_without_a_word_gives_up(tmp_path: Path) -> None:
    """After a few tries, with an error, and not with a process that never serves."""
    module = Module(tmp_path, ALL_END)
    server = FromFolder(tmp_path, *module.flags)
    try:
        done = subprocess.run(
            server.command(), capture_output=True, text=True, timeout=60, **server.popen_options()
        )
    finally:
        server.close()
    assert done.returncode == 1
    assert "a worker could not start: it ended without a report" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(set(module.pids())) >= 2 * START_TRIES


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")
def test_a_supervisor_that_cannot_start_a_process_tries_until_it_can(tmp_path: Path) -> None:
    """A machine may be short of files or processes for a while."""
    with Penstock(*sqlite(tmp_path)) as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        before = workers_of(server.pid)
        usual = resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, 4_096))
        kill(before[0])
        eventually(lambda: _says(server, "no worker could be started"), within=20, what="the try")
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (min(usual[0], 4_096), 4_096))
        eventually(lambda: _has_workers(server.pid, 2), within=20, what="a successor")
        assert before[1] in workers_of(server.pid)


def _has_workers(pid: int, wanted: int) -> None:
    if len(workers := workers_of(pid)) < wanted:
        raise NotReady(str(workers))


def _gone(pid: int) -> None:
    if Path(f"/proc/{pid}").exists():
        raise NotReady(str(pid))
