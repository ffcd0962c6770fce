"""What several limits cost as one decision: `python -m bench.several_limits`.

Ratios of two things measured in the same run, in turn, so that a busy machine slows both:

- in memory, one `Limits.check` of three limits against one plain check, beside two peers that ask
  three times (where they are installed);
- on Redis the same, and a slot taken and given back against one check, sync and awaited;
- memory per key and limit, of 100,000 keys of three limits.

Medians over rounds, of times and of ratios; the last line is JSON. Give a redis:// URL, or none to
start a Valkey.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any, NamedTuple

from penstock import Limit, Limits, gcra, rate_limit, slots
from penstock.stores.redis import RedisStore

ROUNDS = 60
DAY_MS = 86_400_000
KEYS = {"user": "alice", "tenant": "acme"}
CROWD = 100_000
TARGETS = {
    "memory_three": 2.5,
    "redis_three": 1.3,
    "redis_slot": 2.2,
    "redis_three_awaited": 1.3,
    "redis_slot_awaited": 2.2,
    "bytes_per_key_and_limit": 170.0,
}


def shape() -> dict[str, Any]:
    """Per user, per tenant, for everybody; never exhausted here."""
    return {
        "user": gcra(10**6, DAY_MS),
        "tenant": gcra(10**6, DAY_MS),
        "all": Limit(gcra(10**6, DAY_MS), keyless=True),
    }


def per_call_us(work: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls * 1e6


class Compared(NamedTuple):
    """What something takes, and how often that is what one check takes in the same round."""

    time_us: float
    ratio: float


def compared(works: dict[str, Callable[[], object]], calls: int) -> dict[str, Compared]:
    """The medians of each, taken in turn. A round is short, so that what else the machine does is
    the same for all of it."""
    rounds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            rounds[name].append(per_call_us(work, calls))
    return {name: _median(times, rounds["one check"]) for name, times in rounds.items()}


def _median(times: list[float], of_one_check: list[float]) -> Compared:
    ratios = [time_us / one for time_us, one in zip(times, of_one_check, strict=True)]
    return Compared(statistics.median(times), statistics.median(ratios))


def peers() -> dict[str, Callable[[], object]]:
    """Others, which ask once per limit and give nothing back."""
    found: dict[str, Callable[[], object]] = {}
    with suppress(ImportError):
        limits = import_module("limits")
        item = limits.RateLimitItemPerDay(10**6)
        hit = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage()).hit
        found["limits, three calls"] = lambda: (
            hit(item, "user:alice"),
            hit(item, "tenant:acme"),
            hit(item, "all"),
        )
    with suppress(ImportError):
        throttled = import_module("throttled")
        quota = import_module("throttled.rate_limiter").per_day(10**6)
        ask = throttled.Throttled(using="gcra", quota=quota, store=throttled.MemoryStore()).limit
        found["throttled-py, three calls"] = lambda: (
            ask("user:alice"),
            ask("tenant:acme"),
            ask("all"),
        )
    return found


def in_memory() -> dict[str, Compared]:
    one = rate_limit(gcra(10**6, DAY_MS), prefix="user")
    three = Limits(shape())
    works: dict[str, Callable[[], object]] = {
        "one check": lambda: one.check("alice"),
        "three limits": lambda: three.check(KEYS),
        **peers(),
    }
    return compared(works, 1_000)


def on_redis(url: str) -> dict[str, Compared]:
    store = RedisStore.from_url(url, timeout_ms=5_000)
    one = rate_limit(gcra(10**6, DAY_MS), store=store, prefix="user")
    three = Limits(shape(), store=store, prefix="several")
    held = rate_limit(slots(100), store=store, prefix="slots")
    works: dict[str, Callable[[], object]] = {
        "one check": lambda: one.check("alice"),
        "three limits": lambda: three.check(KEYS),
        "a slot, taken and given back": lambda: held.reserve("k").cancel(),
    }
    found = compared(works, 50)
    store.close()
    return found


async def awaited_on_redis(url: str) -> dict[str, Compared]:
    store = RedisStore.from_url(url, timeout_ms=5_000)
    one = rate_limit(gcra(10**6, DAY_MS), store=store, prefix="user")
    three = Limits(shape(), store=store, prefix="several")
    held = rate_limit(slots(100), store=store, prefix="slots")

    async def take_and_give_back() -> None:
        charge = await held.areserve("k")
        await charge.acancel()

    works: dict[str, Callable[[], Awaitable[object]]] = {
        "one check": lambda: one.acheck("alice"),
        "three limits": lambda: three.acheck(KEYS),
        "a slot, taken and given back": take_and_give_back,
    }
    rounds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.perf_counter()
            for _ in range(50):
                await work()
            rounds[name].append((time.perf_counter() - start) / 50 * 1e6)
    await store.aclose()
    return {name: _median(times, rounds["one check"]) for name, times in rounds.items()}


def bytes_per_key_and_limit() -> float:
    """What 100,000 keys of three limits take, in a process of their own."""
    script = "from bench.several_limits import weigh; print(weigh())"
    output = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=os.environ
    )
    return float(output.stdout)


def weigh() -> float:
    limits = Limits({name: gcra(100, DAY_MS) for name in ("user", "tenant", "route")})
    limits.check(dict.fromkeys(("user", "tenant", "route"), "warm"))
    gc.collect()
    before = _resident()
    for number in range(CROWD):
        limits.check(dict.fromkeys(("user", "tenant", "route"), f"caller-{number}"))
    gc.collect()
    return (_resident() - before) / (3 * CROWD)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def show(title: str, found: dict[str, Compared]) -> None:
    print(title)
    for name, (time_us, ratio) in found.items():
        print(f"  {name:32} {time_us:9.2f} us  {ratio:6.2f} x one check")


def main(arguments: list[str]) -> None:
    with ExitStack() as stack:
        if arguments:
            url = arguments[0]
        else:
            from tests.servers import Valkey

            url = stack.enter_context(Valkey()).url
        memory, redis = in_memory(), on_redis(url)
        awaited = asyncio.run(awaited_on_redis(url))
        weight = bytes_per_key_and_limit()
    show("in memory", memory)
    show("on Redis", redis)
    show("on Redis, awaited", awaited)
    print(f"memory per key and limit: {weight:.0f} bytes")
    figures = {
        "memory_three": memory["three limits"].ratio,
        "redis_three": redis["three limits"].ratio,
        "redis_slot": redis["a slot, taken and given back"].ratio,
        "redis_three_awaited": awaited["three limits"].ratio,
        "redis_slot_awaited": awaited["a slot, taken and given back"].ratio,
        "bytes_per_key_and_limit": weight,
    }
    for name, target in TARGETS.items():
        verdict = "met" if figures[name] <= target else "MISSED"
        print(f"{name}: {figures[name]:.2f}, at most {target}: {verdict}")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
