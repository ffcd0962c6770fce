"""A process that spends and says so, for tests that kill it, or the server below it.

`python -m tests.stores.crash URL KEY LIMIT` checks one key without a pause, or `A+B` as one
decision, and writes `+` for each admission once it has been told of it: what is on the pipe was
committed. A denial is `-`, an outage `?` if the request may have been charged and `!` if it was
not, and the load goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType

from penstock import StoreUnavailableError, SystemClock, fixed_window, rate_limit
from penstock.core._steps import Step
from penstock.core._transform import checking
from penstock.stores import open_store
from tests.servers.process import REPO

LIMIT = 1_000_000
WINDOW_MS = 864_000_000
STRATEGY = fixed_window(LIMIT, WINDOW_MS, "first")
_DOUBT = "may have been charged"


class Spender:
    """The process, as a test holds it."""

    def __init__(self, url: str, key: str, limit: int = LIMIT) -> None:
        paths = os.pathsep.join([str(REPO / "src"), str(REPO)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.crash", url, key, str(limit)],
            stdout=subprocess.PIPE,
            cwd=REPO,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.admitted = 0
        self.doubtful = 0
        self.denied = 0
        self.outages = 0

    def read(self, lines: int) -> None:
        """Wait until so many more outcomes were reported."""
        assert self._process.stdout is not None
        for _ in range(lines):
            self._count(self._process.stdout.readline())

    def read_until_denied(self) -> None:
        """Wait until there is nothing left to spend."""
        seen = self.denied
        while self.denied == seen:
            self.read(1)

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
        self.denied += line == b"-\n"
        self.doubtful += line == b"?\n"
        self.outages += line in (b"?\n", b"!\n")

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
    url, key, limit = sys.argv[1:]
    strategy, store = fixed_window(int(limit), WINDOW_MS, "first"), open_store(url)
    check = rate_limit(strategy, store=store).check
    steps = [Step(each, checking(strategy)) for each in key.split("+")]
    now = SystemClock().now

    def check_all() -> bool:
        return all(store.apply_all(steps, now()))

    while True:
        os.write(1, _outcome(check_all if len(steps) > 1 else lambda: bool(check(key))))


def _outcome(ask: Callable[[], bool]) -> bytes:
    try:
        return b"+\n" if ask() else b"-\n"
    except StoreUnavailableError as error:
        # Let the server come back before the next try.
        time.sleep(0.01)
        return b"?\n" if _DOUBT in str(error) else b"!\n"


if __name__ == "__main__":
    main()
