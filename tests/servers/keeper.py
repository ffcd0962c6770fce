"""The keeper: a process that outlives the test run just long enough to clean up after it.

A test process can die without a word (SIGKILL, a crash of the interpreter), so cleaning up cannot
be its own duty. It holds one end of a pipe; the keeper reads the other and learns which servers
are running. When the pipe closes, for whatever reason, the keeper kills what is left and removes
the run's temporary folder.

PR_SET_PDEATHSIG would be shorter and wrong here: it fires when the *thread* that started the
child ends, it needs code between fork and exec, which is unsafe once threads exist (the proxy is
one), and it does not reach grandchildren.

A server is a family: workerd is a child of Node, PostgreSQL moves each backend into a session of
its own. Signals therefore follow the parent links, not the process group. This file is run by
path as well as imported, so it may import only the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def _stat_fields(pid: int) -> list[str]:
    """State, parent and so on; empty once the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The command's name may hold spaces and brackets; the fields start after the last bracket.
    return stat.rpartition(")")[2].split()


def family(pid: int) -> list[int]:
    """The process and its descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := _stat_fields(int(entry.name)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    members = [pid]
    for member in members:
        members.extend(children.get(member, ()))
    return members


def signal_family(pid: int, signum: signal.Signals) -> list[int]:
    """Signal every member, and again until no new child shows up."""
    told: list[int] = []
    while new := [member for member in family(pid) if member not in told]:
        for member in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signum)
        told += new
    return told


def kill_family(pid: int) -> list[int]:
    """Kill every member. Frozen first: a dead parent's late children could not be found."""
    members = signal_family(pid, signal.SIGSTOP)
    for member in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    return members


def wait_gone(pids: list[int], seconds: float = 5.0) -> None:
    """Wait until none of them runs; a zombie no longer holds ports, files or memory."""
    deadline = time.monotonic() + seconds
    while any(_stat_fields(pid)[:1] not in ([], ["Z"]) for pid in pids):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} survived SIGKILL for {seconds:g} s")
        time.sleep(0.002)


class Keeper:
    """The test process's side of the pipe."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="penstock-servers-"))
        # A server that runs as another user must be able to reach its own folder below.
        self.root.chmod(0o711)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self.root)],
            stdin=subprocess.PIPE,
            # A Ctrl-C meant for the tests must not end the one who cleans up after them.
            start_new_session=True,
        )
        atexit.register(self.close)

    def new_folder(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root))

    def watch(self, pid: int) -> None:
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), line.encode())


@functools.cache
def keeper() -> Keeper:
    """The one keeper of this test process."""
    return Keeper()


def _keep(root: Path) -> None:
    parent = os.getppid()
    watched: set[int] = set()
    pending = b""
    # A fork of the test process would hold the pipe open after it: look at the parent as well.
    while os.getppid() == parent:
        if not select.select([0], [], [], 1.0)[0]:
            continue
        if not (chunk := os.read(0, 4096)):
            break
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            (watched.add if line.startswith(b"+") else watched.discard)(int(line[1:]))
    for pid in watched:
        with contextlib.suppress(PermissionError, TimeoutError):
            wait_gone(kill_family(pid))
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
