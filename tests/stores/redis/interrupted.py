"""A program that checks while a timer's signal handler raises, as fast as it can be served.

`python -m tests.stores.redis.interrupted URL SECONDS` prints what happened, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

from penstock import Limiter, fixed_window, gcra, sliding_window_log, token_bucket
from penstock.stores.redis import RedisStore
from tests.stores.redis.live import SPAN_MS, new_key
from tests.support.helpers import Quota


class Interrupt(BaseException):
    """What the handler raises."""


def raising(*_: object) -> None:
    raise Interrupt


def works(store: RedisStore) -> list[tuple[int, Callable[[], Any]]]:
    """Calls of every kind, each with the limit that its answers must tell of."""
    lead = new_key()
    strategies = [
        gcra(1_001, SPAN_MS),
        token_bucket(1_002, 1),
        fixed_window(1_003, SPAN_MS),
        sliding_window_log(1_004, SPAN_MS),
        Quota(1_006),
    ]
    calls: list[tuple[int, Callable[[], Any]]] = []
    for strategy in strategies:
        limiter = Limiter(strategy, store, prefix=f"{lead}:{strategy.name}:{strategy.limit}")
        calls += [
            (strategy.limit, lambda limiter=limiter: limiter.check("one")),
            (strategy.limit, lambda limiter=limiter: limiter.check("one", 3)),
            (strategy.limit, lambda limiter=limiter: limiter.check_many(["two", "three"])[-1]),
            (strategy.limit, lambda limiter=limiter: limiter.peek("one")),
        ]
    return calls


def soak(store: RedisStore, seconds: float) -> dict[str, Any]:
    counts = {"interrupts": 0, "answers": 0, "wrong": 0}
    calls = works(store)
    for _, call in calls:
        call()
    turn = cycle(calls)
    signal.signal(signal.SIGALRM, raising)
    end = time.monotonic() + seconds
    delay_s = 0.0
    while time.monotonic() < end:
        try:
            # From the first instruction of a call to well past the end of one.
            delay_s = (delay_s + 0.000_003) % 0.000_6
            signal.setitimer(signal.ITIMER_REAL, 0.000_01 + delay_s)
            # To the end at most: what is raised inside of a finalizer is lost.
            while time.monotonic() < end:
                limit, call = next(turn)
                counts["wrong"] += call().limit != limit
                counts["answers"] += 1
        except Interrupt:  # noqa: PERF203
            counts["interrupts"] += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    counts["served"] = sum(call().limit == limit for limit, call in calls)
    return {**counts, "calls": len(calls), "files": len(os.listdir("/proc/self/fd"))}


if __name__ == "__main__":
    with_url = RedisStore.from_url(sys.argv[1], timeout_ms=2_000)
    print(json.dumps(soak(with_url, float(sys.argv[2]))))
