"""One measurement: a contender's loop between two baseline loops, in the same process.

The baseline stands on both sides of the contender, so that a machine which speeds up or slows
down in between shifts both alike. What is read is the processor time of the whole process, the
contender's background threads included: on a busy machine, wall time would charge the slower
contenders, whose loops take longer, for the time that other programs take from them. The collector
is off while the clock runs, as in `timeit`.

A loop's bytecode adapts to what it calls. Each measurement therefore gets loops of its own: one
that had served `dict.get` before would run a contender on a path specialised for something else.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from time import process_time_ns
from types import FunctionType
from typing import Any

from .contenders import Contender, Quota

__all__ = ["Probe", "Sample", "async_probe", "batch_probe", "hot_probe", "keys_probe", "make_keys"]

HOT_KEY = "user:00000000042"
AMPLE = Quota(1_000_000, 120)
SCARCE = Quota(1, 3600)
# A single hit stays on record for 86 seconds, so that keys remain resident between rounds.
LASTING = Quota(1000, 86_400)
# The baseline's calls are so short that reading the clock would show in fewer of them.
_BASE_REPEATS = 10


@dataclass(frozen=True)
class Sample:
    """Nanoseconds per call: the contender's, and the baseline's on either side of it."""

    call_ns: float
    base_ns: float

    @property
    def ratio(self) -> float:
        return self.call_ns / self.base_ns


Probe = Callable[[], Sample]


def _each(call: Callable[[Any], Any], items: Sequence[Any]) -> int:
    start = process_time_ns()
    for item in items:
        call(item)
    return process_time_ns() - start


def _each_of_each(call: Callable[[Any], Any], batches: Sequence[Sequence[Any]]) -> int:
    start = process_time_ns()
    for batch in batches:
        for item in batch:
            call(item)
    return process_time_ns() - start


async def _await_each(call: Callable[[Any], Awaitable[Any]], items: Sequence[Any]) -> int:
    start = process_time_ns()
    for item in items:
        await call(item)
    return process_time_ns() - start


async def _empty(_key: str) -> None:
    pass


def _own(loop: Any) -> Any:
    """A copy of the loop with bytecode caches of its own."""
    return FunctionType(loop.__code__.replace(), loop.__globals__)


def _settle() -> None:
    """Let a library's one-shot timers finish, so that they do not run into the next loop."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(5)
    gc.collect()


def _sandwich(
    base: Callable[[], int], call: Callable[[], int], count: int, base_count: int
) -> Sample:
    base()
    _settle()
    gc.disable()
    try:
        before = base()
        taken = call()
        _settle()
        after = base()
    finally:
        gc.enable()
    return Sample(taken / count, fmean((before, after)) / base_count)


def make_keys(count: int) -> list[str]:
    """Keys of 16 characters."""
    return [f"user:{number:011d}" for number in range(count)]


def _expect(contender: Contender, answer: Any, allowed: bool) -> None:
    if contender.allowed(answer) is not allowed:
        raise RuntimeError(f"{contender.name} should have {'allowed' if allowed else 'denied'}")


def hot_probe(contender: Contender, calls: int, allowed: bool) -> Probe:
    """One key, over and over. Each measurement starts with a fresh limiter."""
    assert contender.open is not None
    open_limiter = contender.open
    keys = [HOT_KEY] * calls
    base_keys = keys * _BASE_REPEATS
    get = {HOT_KEY: True}.get
    base_loop, call_loop = _own(_each), _own(_each)

    def probe() -> Sample:
        check = open_limiter(AMPLE if allowed else SCARCE)
        call_loop(check, keys[:100])
        sample = _sandwich(
            lambda: base_loop(get, base_keys),
            lambda: call_loop(check, keys),
            calls,
            len(base_keys),
        )
        _expect(contender, check(HOT_KEY), allowed)
        return sample

    return probe


def keys_probe(contender: Contender, count: int, passes: int) -> Probe:
    """Many keys, all resident, visited in a shuffled order, as are the keys of the bare dict.

    The dict holds one number per key, the least that any limiter has to reach.
    """
    assert contender.open is not None
    keys = make_keys(count)
    get = {key: float(number) for number, key in enumerate(keys)}.get
    check = contender.open(LASTING)
    for key in keys:
        check(key)
    Random(count).shuffle(keys)
    visits = keys * passes
    base_loop, call_loop = _own(_each), _own(_each)

    def probe() -> Sample:
        sample = _sandwich(
            lambda: base_loop(get, visits),
            lambda: call_loop(check, visits),
            len(visits),
            len(visits),
        )
        _expect(contender, check(keys[0]), True)
        return sample

    return probe


def batch_probe(contender: Contender, calls: int, batch_size: int) -> Probe:
    """Whole batches in one call, per key, against one `dict.get` per key."""
    assert contender.open_many is not None
    open_many = contender.open_many
    keys = make_keys(batch_size)
    get = dict.fromkeys(keys, True).get
    batches = [keys] * (calls // batch_size)
    base_batches = batches * _BASE_REPEATS
    base_loop, call_loop = _own(_each_of_each), _own(_each)

    def probe() -> Sample:
        check_many = open_many(AMPLE)
        check_many(keys)
        sample = _sandwich(
            lambda: base_loop(get, base_batches),
            lambda: call_loop(check_many, batches),
            batch_size * len(batches),
            batch_size * len(base_batches),
        )
        _expect(contender, check_many(keys)[-1], True)
        return sample

    return probe


def async_probe(contender: Contender, calls: int) -> Probe:
    """One key awaited over and over, against the await of an empty coroutine."""
    assert contender.aopen is not None
    aopen = contender.aopen
    keys: list[Any] = [HOT_KEY if contender.keyed else 1] * calls
    base_keys = keys * _BASE_REPEATS
    base_loop, call_loop = _own(_await_each), _own(_await_each)

    async def measure() -> Sample:
        check = aopen(AMPLE)
        await call_loop(check, keys[:100])
        await base_loop(_empty, base_keys)
        _settle()
        gc.disable()
        try:
            before = await base_loop(_empty, base_keys)
            taken = await call_loop(check, keys)
            after = await base_loop(_empty, base_keys)
        finally:
            gc.enable()
        _expect(contender, await check(keys[0]), True)
        return Sample(taken / calls, fmean((before, after)) / len(base_keys))

    return lambda: asyncio.run(measure())
