"""What a check on Redis costs, against the bare client: `python -m bench.redis_paths`.

Three ratios, each of two things measured in the same run, in turn, so that a busy machine slows
both: a sync check against `EVALSHA` of `return 1` through redis-py; 50 tasks that check against
50 that `INCR` through redis-py's asyncio client; a check of 100 keys against a check of one, and
that again for each strategy. Beside the time of a call stands the processor time that the client
takes for it, which tells more on a machine with other work. Medians over rounds; the last line is
JSON. Give a redis:// URL, or none to start a Valkey.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import redis
import redis.asyncio

from penstock import ConfigInvalidError, Limiter, gcra
from penstock.core._register import registered
from penstock.stores.redis import RedisStore

ROUNDS = 15
SYNC_CALLS = 200
TASKS = 50
CALLS_PER_TASK = 40
MANY = 100
# Nothing is to time out on a busy machine.
TIMEOUT_MS = 5_000
DAY_MS = 86_400_000
TARGETS = {"sync_check": 1.0, "async_50": 0.25, "check_many_100": 8.0}
KEYS = [f"user:{number}" for number in range(MANY)]


class Took(NamedTuple):
    """What a call took: time, and of that the processor's in this process."""

    us: float
    cpu_us: float


Samples = dict[str, list[Took]]


class Watch:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def per_call(self, calls: int) -> Took:
        wall_s, cpu_s = (
            time.perf_counter() - self._began[0],
            time.process_time() - self._began[1],
        )
        return Took(wall_s / calls * 1e6, cpu_s / calls * 1e6)


def took(work: Callable[[], object], calls: int) -> Took:
    watch = Watch()
    for _ in range(calls):
        work()
    return watch.per_call(calls)


async def took_in_tasks(work: Callable[[int], Awaitable[object]]) -> Took:
    async def repeat(number: int) -> None:
        for _ in range(CALLS_PER_TASK):
            await work(number)

    watch = Watch()
    await asyncio.gather(*(repeat(number) for number in range(TASKS)))
    return watch.per_call(TASKS * CALLS_PER_TASK)


async def took_alone(work: Callable[[int], Awaitable[object]]) -> Took:
    watch = Watch()
    for _ in range(SYNC_CALLS):
        await work(0)
    return watch.per_call(SYNC_CALLS)


def medians(samples: list[Took]) -> Took:
    wall, cpu = (statistics.median(values) for values in zip(*samples, strict=True))
    return Took(round(wall, 1), round(cpu, 1))


def limiter_on(store: RedisStore) -> Limiter:
    # High enough that every check is admitted, and so writes: the dear case.
    return Limiter(gcra(10_000, 1_000, burst=100_000_000), store, prefix="bench")


def measure_sync(url: str, into: Samples) -> None:
    client: Any = redis.Redis.from_url(url)
    of_client, of_url = (
        RedisStore(client, timeout_ms=TIMEOUT_MS),
        RedisStore.from_url(url, timeout_ms=TIMEOUT_MS),
    )
    limiter, by_url = limiter_on(of_client), limiter_on(of_url)
    one = client.script_load("return 1")
    works: dict[str, tuple[Callable[[], object], int]] = {
        "redis-py EVALSHA 'return 1'": (lambda: client.evalsha(one, 0), SYNC_CALLS),
        "check, store of the same client": (lambda: limiter.check("user:1"), SYNC_CALLS),
        "check, store of a URL": (lambda: by_url.check("user:1"), SYNC_CALLS),
        "check_many of 100": (lambda: limiter.check_many(KEYS), SYNC_CALLS // 10),
    }
    for work, _ in works.values():
        work()
    for _ in range(ROUNDS):
        for name, (work, calls) in works.items():
            into.setdefault(name, []).append(took(work, calls))
    of_client.close()
    of_url.close()
    client.close()


def measure_many(url: str) -> dict[str, float]:
    """A check of 100 keys against a check of one, by strategy."""
    ratios = {}
    for cls in registered():
        try:
            strategy = cls.per(1_000_000, DAY_MS)
        except ConfigInvalidError:
            continue  # not to be had from a limit and a window alone
        store = RedisStore.from_url(url, timeout_ms=TIMEOUT_MS)
        limiter = Limiter(strategy, store, prefix=f"bench:{cls.name}")
        works = (
            (lambda limiter=limiter: limiter.check("user:1"), SYNC_CALLS),
            (lambda limiter=limiter: limiter.check_many(KEYS), SYNC_CALLS // 10),
        )
        rounds = [[took(work, calls).us for work, calls in works] for _ in range(ROUNDS)]
        one, many = map(statistics.median, zip(*rounds, strict=True))
        ratios[cls.name] = round(many / one, 1)
        store.close()
    return ratios


async def measure_async(url: str, into: Samples) -> None:
    client: Any = redis.asyncio.Redis.from_url(url)
    store = RedisStore.from_url(url, timeout_ms=TIMEOUT_MS)
    limiter = limiter_on(store)
    incr = "redis-py asyncio INCR"
    works: dict[str, Callable[[int], Awaitable[object]]] = {
        incr: lambda number: client.incr(f"bench:n{number}"),
        "acheck": lambda number: limiter.acheck(f"user:{number}"),
    }
    for work in works.values():
        await took_in_tasks(work)
    for _ in range(ROUNDS):
        for name, work in works.items():
            into.setdefault(f"{name}, {TASKS} tasks", []).append(await took_in_tasks(work))
            into.setdefault(f"{name}, alone", []).append(await took_alone(work))
    await store.aclose()
    await client.aclose()


def main() -> int:
    with ExitStack() as stack:
        if len(sys.argv) > 1:
            url = sys.argv[1]
        else:
            from tests.servers import Valkey

            url = stack.enter_context(Valkey()).url
        samples: Samples = {}
        measure_sync(url, samples)
        asyncio.run(measure_async(url, samples))
        by_strategy = measure_many(url)
    figures = {name: medians(values) for name, values in samples.items()}
    us = {name: figure.us for name, figure in figures.items()}
    check = us["check, store of the same client"]
    ratios = {
        "sync_check": round(check / us["redis-py EVALSHA 'return 1'"], 3),
        "async_50": round(us["acheck, 50 tasks"] / us["redis-py asyncio INCR, 50 tasks"], 3),
        "check_many_100": round(us["check_many of 100"] / check, 2),
    }
    for name, figure in figures.items():
        print(f"{name:36s} {figure.us:8.1f} us, {figure.cpu_us:7.1f} us of the processor")
    for name, ratio in ratios.items():
        verdict = "holds" if ratio <= TARGETS[name] else "MISSED"
        print(f"{name:36s} {ratio:8.3f} (at most {TARGETS[name]:.3f}: {verdict})")
    for name, ratio in by_strategy.items():
        print(f"{f'check_many of 100, {name}':36s} {ratio:8.1f} checks")
    cpu_us = {name: figure.cpu_us for name, figure in figures.items()}
    print(json.dumps({"us": us, "cpu_us": cpu_us, "ratios": ratios, "check_many_100": by_strategy}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
