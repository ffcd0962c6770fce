"""Workers and their supervisor when some of them stand still for a while."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from penstock.service._supervisor import SILENT_S
from tests.servers import eventually
from tests.service.http.serving import Penstock
from tests.service.http.test_workers import _says, ask, sqlite, workers_of


def test_workers_are_not_blamed_for_time_in_which_nobody_listened(tmp_path: Path) -> None:
    """As when a machine slept: their supervisor stood still, and none of them is replaced."""
    with Penstock(*sqlite(tmp_path)) as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        before = workers_of(server.pid)
        os.kill(server.pid, signal.SIGSTOP)
        until = time.monotonic() + SILENT_S + 1
        # Who adds up is not there; requests are decided all the same.
        assert ask(server.port, "/metrics").status == 503
        while time.monotonic() < until:
            assert ask(server.port, "/check/alice").status in (200, 429)
            time.sleep(0.05)
        os.kill(server.pid, signal.SIGCONT)
        time.sleep(1.5)
        assert workers_of(server.pid) == before
        assert "silent" not in server.log_path.read_text()
        assert ask(server.port, "/metrics").status == 200


def test_all_stop_though_one_of_them_stands_still(tmp_path: Path) -> None:
    """It is waited for as long as a worker may take to answer what it has, and then killed."""
    with Penstock(*sqlite(tmp_path), "--drain", "0") as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        process, before = server.process(), workers_of(server.pid)
        os.kill(before[0], signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not [pid for pid in before if Path(f"/proc/{pid}").exists()]
