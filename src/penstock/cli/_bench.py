"""`penstock bench`: measures checks on this machine, in process or on a store.

In process, times are also given as multiples of a `dict.get` in the same round, which cancels out
the load of the machine. On a store, checks are made by many threads, then by many tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import median

from .._rate_limit import rate_limit
from ..core._errors import UnsupportedError
from ..core._limiter import Limiter
from ..core._validation import reject, require_int
from ..service._logs import shown_store
from ..stores._opening import open_store
from ..strategies import gcra
from ._version import describe

__all__ = ["SUMMARY", "configure", "run"]


SUMMARY = "measure checks on this machine, in process or on a store"

_EPILOG = """\
examples:
  penstock bench                                        in process, against dict.get
  penstock bench --store redis://localhost:6379         a store, from threads and from tasks

Keys in the store start with `penstock-bench:` and expire by themselves.

Exit codes: 0 measured, 1 the store is away, 2 invalid arguments.
"""

_CALLS = 20_000
_HOT_KEY = "user:00000000042"
_PREFIX = "penstock-bench"
# A limit that is never reached.
_PLENTY = gcra(10_000, 1_000, burst=100_000_000)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--store", metavar="URL", help="a store to measure instead of this process")
    add("--rounds", type=int, metavar="N", default=9, help="number of rounds (%(default)s)")
    add("--callers", type=int, metavar="N", default=16, help="threads or tasks (%(default)s)")
    add(
        "--seconds", type=float, metavar="S", default=0.5, help="per round on a store (%(default)s)"
    )
    add("--keys", type=int, metavar="N", default=1_000, help="keys on a store (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    require_int("--rounds", args.rounds, high=1_000)
    require_int("--callers", args.callers, high=10_000)
    require_int("--keys", args.keys, high=10_000_000)
    if not 0.01 <= args.seconds <= 3_600:
        reject(f"--seconds must lie between 0.01 and 3600, not {args.seconds!r}")
    if args.store is None:
        _in_process(args.rounds)
    else:
        _on_store(args)
    return 0


def _in_process(rounds: int) -> None:
    keys = [_HOT_KEY] * _CALLS
    get = {_HOT_KEY: True}.get
    allowed, denied = rate_limit(_PLENTY), rate_limit("1/hour")
    denied.check(_HOT_KEY)
    batch = [f"user:{number:011d}" for number in range(100)]
    cases: dict[str, Callable[[], float]] = {
        "check, allowed": lambda: _each_ns(allowed.check, keys),
        "check, denied": lambda: _each_ns(denied.check, keys),
        "check_many, per key": lambda: _each_ns(allowed.check_many, [batch] * 200) / len(batch),
        "await acheck": lambda: asyncio.run(_each_await_ns(allowed.acheck, keys)),
    }
    print(f"{describe()}: ns a call, and as a multiple of dict.get; medians of {rounds} rounds")
    for name, case in cases.items():
        ratios, times = [], []
        with _undisturbed():
            for number in range(1, rounds + 1):
                _progress(f"{name}: round {number} of {rounds}")
                base = _each_ns(get, keys)
                taken = case()
                base = (base + _each_ns(get, keys)) / 2
                times.append(taken)
                ratios.append(taken / base)
        _progress("")
        print(f"  {name:22}{median(times):9.0f} ns{median(ratios):9.1f} x")


def _each_ns(call: Callable[..., object], items: list[str] | list[list[str]]) -> float:
    start = time.perf_counter_ns()
    for item in items:
        call(item)
    return (time.perf_counter_ns() - start) / len(items)


async def _each_await_ns(call: Callable[[str], Awaitable[object]], items: list[str]) -> float:
    start = time.perf_counter_ns()
    for item in items:
        await call(item)
    return (time.perf_counter_ns() - start) / len(items)


def _on_store(args: argparse.Namespace) -> None:
    where = f"{args.callers} callers on {shown_store(args.store)}, medians of {args.rounds} rounds"
    for mode, measure in (("threads, check", _threads), ("tasks, acheck", _tasks)):
        store = open_store(args.store)
        if measure is _threads:
            print(f"{describe()}: {where}")
        limiter = rate_limit(_PLENTY, store=store, prefix=_PREFIX)
        keys = [f"k{number}" for number in range(args.keys)]
        try:
            rates = measure(limiter, keys, args)
        except UnsupportedError as error:
            print(f"  {mode:22}{error}")
            continue
        finally:
            _progress("")
        print(f"  {mode:22}{median(rates):9,.0f} checks/s")


def _threads(limiter: Limiter, keys: list[str], args: argparse.Namespace) -> list[float]:
    rates = []
    try:
        limiter.check(keys[0])
        for number in range(1, args.rounds + 1):
            _progress(f"threads: round {number} of {args.rounds}")
            rates.append(_threads_once(limiter, keys, args.callers, args.seconds))
    finally:
        limiter.store.close()
    return rates


def _threads_once(limiter: Limiter, keys: list[str], callers: int, seconds: float) -> float:
    counts = [0] * callers
    troubles: list[Exception] = []
    end = time.perf_counter() + seconds

    def call(place: int) -> None:
        number = place
        try:
            while time.perf_counter() < end:
                limiter.check(keys[number % len(keys)])
                number += callers
                counts[place] += 1
        except Exception as error:
            troubles.append(error)

    threads = [threading.Thread(target=call, args=(place,)) for place in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if troubles:
        raise troubles[0]
    return sum(counts) / seconds


def _tasks(limiter: Limiter, keys: list[str], args: argparse.Namespace) -> list[float]:
    async def measure() -> list[float]:
        try:
            await limiter.acheck(keys[0])
            rates = []
            for number in range(1, args.rounds + 1):
                _progress(f"tasks: round {number} of {args.rounds}")
                rates.append(await _tasks_once(limiter, keys, args.callers, args.seconds))
            return rates
        finally:
            await limiter.store.aclose()

    return asyncio.run(measure())


async def _tasks_once(limiter: Limiter, keys: list[str], callers: int, seconds: float) -> float:
    end = time.perf_counter() + seconds

    async def call(place: int) -> int:
        number, done = place, 0
        while time.perf_counter() < end:
            await limiter.acheck(keys[number % len(keys)])
            number += callers
            done += 1
            # A store in this process never suspends the task, so let the others run.
            await asyncio.sleep(0)
        return done

    return sum(await asyncio.gather(*(call(place) for place in range(callers)))) / seconds


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _progress(text: str) -> None:
    """On a terminal, show progress in one line that is overwritten."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
