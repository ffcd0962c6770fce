"""A program whose main thread is interrupted by a signal handler that raises, as often as it can.

    python -m tests.faults.signals <store URL, or "acquire" or "lease"> <seconds>

Three threads beside it check the same key. It prints, as JSON, what all of them were told and what
was spent in the end.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from typing import Any

from penstock import (
    MemoryStore,
    Store,
    StoreUnavailableError,
    fixed_window,
    rate_limit,
    token_bucket,
)
from penstock.leasing import two_tier
from penstock.stores import open_store

LIMIT = 10**9
SPAN_MS = 10**9


class Interrupted(Exception):  # noqa: N818 - as programs name theirs
    """What the handler raises: an Exception, which code is more likely to catch than Ctrl-C."""


class Signals:
    """Interrupts the main thread while it is `armed`, after random pauses."""

    def __init__(self) -> None:
        self.armed = False
        self._is_over = False
        signal.signal(signal.SIGALRM, self._handle)

    def _handle(self, *_: Any) -> None:
        if not self._is_over:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.000_2, 0.003))
        if self.armed:
            self.armed = False
            raise Interrupted

    def start(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    def stop(self) -> None:
        self._is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)


class Far(Store):
    """A far tier that is not in C, and notes what it granted. (Without an Event or a Condition of
    the standard library: those do not outlive an interrupt.)"""

    def __init__(self) -> None:
        self._inner = MemoryStore()
        self.granted: list[int] = []

    def apply(self, key: str, transform: Any, now: int, cost: int) -> Any:
        grant = self._inner.apply(key, transform, now, cost)
        self.granted.append(getattr(grant, "capacity", 0))
        return grant


class Tally:
    """What one thread was told."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.admitted = self.interrupted = self.in_doubt = 0
        self.slowest_s = 0.0
        self.errors: list[str] = []

    def work(self, until: float, signals: Signals | None = None) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                self._once(signals)
            except Interrupted:
                self.interrupted += 1
            except StoreUnavailableError as error:
                if "may have been charged" in str(error):
                    self.in_doubt += 1
                else:
                    self.errors.append(str(error))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _once(self, signals: Signals | None) -> None:
        if signals is None:
            self.admitted += bool(self._call().allowed)
            return
        try:
            signals.armed = True
            decision = self._call()
        finally:
            signals.armed = False
        self.admitted += bool(decision.allowed)


def _limiter(what: str) -> tuple[Any, Any]:
    """What to call, and how to know what was spent."""
    if what == "acquire":
        limiter = rate_limit(token_bucket(1, 2_000))
        return lambda: limiter.acquire("k", timeout=5), lambda: None
    if what == "lease":
        far = Far()
        leased = two_tier(fixed_window(LIMIT, SPAN_MS), far, batch=3)
        return lambda: leased.check("k"), lambda: sum(far.granted)
    store: Any = open_store(what, timeout_ms=3_000)
    if hasattr(store, "init"):
        store.init()
    limiter = rate_limit(fixed_window(LIMIT, SPAN_MS, "first"), store=store)
    return lambda: limiter.check("k"), lambda: LIMIT - limiter.peek("k").remaining


def main(what: str, seconds: float) -> None:
    call, spent = _limiter(what)
    tallies = [Tally(call) for _ in range(4)]
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=tally.work, args=(until,), daemon=True) for tally in tallies[1:]
    ]
    for thread in threads:
        thread.start()
    signals = Signals()
    signals.start()
    while time.monotonic() < until:
        try:
            tallies[0].work(until, signals)
        except Interrupted:  # noqa: PERF203 - right behind the code that counts it
            tallies[0].interrupted += 1
    signals.stop()
    for thread in threads:
        thread.join(10)
    last = Tally(call)
    last.work(time.monotonic() + 0.1)
    report = {
        "hanging": sum(thread.is_alive() for thread in threads),
        "admitted": sum(tally.admitted for tally in [*tallies, last]),
        "interrupted": tallies[0].interrupted,
        "in_doubt": sum(tally.in_doubt for tally in tallies),
        "errors": [error for tally in [*tallies, last] for error in tally.errors],
        "slowest_s": max(tally.slowest_s for tally in tallies),
        "last": last.admitted,
        "spent": spent(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
