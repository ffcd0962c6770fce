"""A process that spends and says so, for tests that kill it, or the server below it.

`python -m tests.stores.crash URL KEY` checks one key without a pause and writes a line for each
admission once it has been told of it: what is on the pipe was committed. An outage is noted as
`?`, since the request may have been charged, and the load goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import TracebackType

from penstock import StoreUnavailableError, fixed_window, rate_limit
from penstock.stores import open_store
from tests.servers.process import REPO

LIMIT = 1_000_000
WINDOW_MS = 864_000_000
STRATEGY = fixed_window(LIMIT, WINDOW_MS, "first")


class Spender:
    """The process, as a test holds it."""

    def __init__(self, url: str, key: str) -> None:
        paths = os.pathsep.join([str(REPO / "src"), str(REPO)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.crash", url, key],
            stdout=subprocess.PIPE,
            cwd=REPO,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.admitted = 0
        self.doubtful = 0

    def read(self, lines: int) -> None:
        """Wait until so many more outcomes were reported."""
        assert self._process.stdout is not None
        for _ in range(lines):
            self._count(self._process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL, then whatever was reported before it."""
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)
        for line in self._process.stdout.read().splitlines(keepends=True):
            self._count(line)
        self._process.stdout.close()

    def _count(self, line: bytes) -> None:
        self.admitted += line == b"+\n"
        self.doubtful += line == b"?\n"

    def __enter__(self) -> Spender:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()


def main() -> None:
    url, key = sys.argv[1:]
    limiter = rate_limit(STRATEGY, store=open_store(url))
    while True:
        try:
            line = b"+\n" if limiter.check(key) else b"-\n"
        except StoreUnavailableError:
            line = b"?\n"
        os.write(1, line)


if __name__ == "__main__":
    main()
