"""What a key costs in memory, and what is left of it once every key has expired.

Each contender fills a process of its own, and what is read is what the operating system sees: the
resident set, after and before. Keys are made on the way in and kept by nobody else, so their
strings are part of the cost. Time is a number that this module sets: it stands still while the
keys come in, however long that takes, and an hour passes at once when they are to expire.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from resource import getpagesize
from typing import Any

from penstock import ManualClock, gcra, rate_limit

from .contenders import CONTENDERS, Contender, Quota
from .rounds import Progress, child_environment

__all__ = ["BARE_DICT", "MemoryRow", "run_memory"]

BARE_DICT = "bare dict"
_QUOTA = Quota(10, 60)
_HOUR_MS = 3_600_000
_LATE_CHECKS = 1_000
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class MemoryRow:
    """Bytes per key with all keys resident, and the share of it that is left afterwards."""

    contender: str
    bytes_per_key: float | None
    left: float | None
    note: str = ""


class _StoppedTime:
    """Stands in for the system's clocks; set before any peer is imported."""

    def __init__(self) -> None:
        self.manual = ManualClock(time.time_ns() // 1_000_000)
        time.time = time.monotonic = lambda: self.manual.now() / 1000
        time.time_ns = time.monotonic_ns = lambda: self.manual.now() * 1_000_000


def _resident_bytes() -> int:
    gc.collect()
    return int(_STATM.read_text().split()[1]) * getpagesize()


def _open(name: str, clock: ManualClock) -> Callable[[str], Any]:
    if name == BARE_DICT:
        return dict[str, None]().setdefault
    contender = CONTENDERS[name]
    if contender.package == "penstock":
        return rate_limit(gcra(_QUOTA.limit, _QUOTA.period_s * 1000), clock=clock).check
    assert contender.open is not None
    return contender.open(_QUOTA)


def _late_checks(check: Callable[[str], Any], lead: str) -> None:
    """A few more checks, and the time that a library's own clean-up thread needs after them."""
    for number in range(_LATE_CHECKS):
        check(f"{lead}:{number:011d}")
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


def measure(name: str, keys: int) -> MemoryRow:
    """Fill, look, let an hour pass, look again. To be run once per process."""
    stopped = _StoppedTime()
    check = _open(name, stopped.manual)
    _late_checks(check, "warm")
    before = _resident_bytes()
    for number in range(keys):
        check(f"user:{number:011d}")
    full = _resident_bytes() - before
    if name == BARE_DICT:
        return MemoryRow(name, full / keys, None)
    stopped.manual.advance(_HOUR_MS)
    _late_checks(check, "late")
    _late_checks(check, "last")
    return MemoryRow(name, full / keys, max(0, _resident_bytes() - before) / full)


def _in_a_child(name: str, keys: int) -> MemoryRow:
    contender = CONTENDERS.get(name)
    child = subprocess.run(
        [sys.executable, "-m", "bench.memory", name, str(keys)],
        env=None if contender is None else child_environment(contender),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return MemoryRow(**json.loads(child.stdout))


def run_memory(keys: int, progress: Progress) -> list[MemoryRow]:
    """Every contender that has keys, and a bare dict of the same keys."""
    if not _STATM.exists():
        return [MemoryRow(BARE_DICT, None, None, "needs /proc/self/statm")]
    names = [BARE_DICT, *(name for name, peer in CONTENDERS.items() if peer.open is not None)]
    rows = []
    for name in names:
        progress(f"{keys:,} keys into {name}")
        rows.append(_in_a_child(name, keys))
    return rows


def _main(name: str, keys: str) -> None:
    import penstock

    contender = CONTENDERS.get(name)
    if contender and _misses_native(contender, penstock.accelerated):
        row = MemoryRow(name, None, None, "the native extension is not built")
    else:
        try:
            row = measure(name, int(keys))
        except ModuleNotFoundError as error:
            row = MemoryRow(name, None, None, f"{error.name} is not installed")
    print(json.dumps(asdict(row)), flush=True)


def _misses_native(contender: Contender, accelerated: bool) -> bool:
    return contender.package == "penstock" and not contender.pure and not accelerated


if __name__ == "__main__":
    _main(*sys.argv[1:])
