"""`python -m tools.progress COMMAND...`: run a command that prints nothing for long.

Prints a line with the elapsed time every ten seconds: a slow step of `make` must not look like one
that hangs. The exit code is that of the command.
"""

import subprocess
import sys
import threading
import time

_INTERVAL_S = 10


def _report(began: float, ended: threading.Event) -> None:
    while not ended.wait(_INTERVAL_S):
        print(f"    working, {time.monotonic() - began:.0f} s so far", flush=True)


def main(command: list[str]) -> int:
    process = subprocess.Popen(command)
    ended = threading.Event()
    threading.Thread(target=_report, args=(time.monotonic(), ended), daemon=True).start()
    try:
        return process.wait()
    finally:
        ended.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
