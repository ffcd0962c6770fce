"""What leasing saves: `python -m bench.leases [redis://...]`.

Five ratios from one run against a real server, each of two things measured in turn, so that a
busy machine slows both:

- round trips per batch, by the server's own count of the scripts it ran;
- requests per second at batch 100, against one round trip per request (`strict`);
- a request that is served from local credits, against `dict.get`;
- requests per second through the Fleet server at batch 1,000, against one Check call per request,
  leased on demand, and with the low-water mark that the client has by default.

Medians over rounds; the last line is JSON. Without a URL, a Valkey is started. Fails if a ratio
misses its target.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import redis

from penstock import Limiter, fixed_window
from penstock.leasing import LeasedLimiter, two_tier
from penstock.stores.redis import RedisStore
from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub
from tests.servers import Valkey
from tests.service.grpc.serving import serving

ROUNDS = 11
BATCH = 100
SERVER_BATCH = 1_000
# High enough that nothing is ever denied, in windows that do not end during a round.
LIMIT = 2**40
HOUR_MS = 3_600_000
POLICIES = f"""
version: 1
limiters:
  api: {{strategy: fixedWindow, limit: {LIMIT}, window: 1h, federated: {{batch: {SERVER_BATCH}}}}}
"""

# name: (target, whether more is better)
TARGETS = {
    "round trips per batch": (1.05, False),
    "throughput at batch 100, against strict": (50.0, True),
    "local spend, against dict.get": (6.0, False),
    "through the Fleet server at batch 1,000, against Check": (300.0, True),
    "the same, leasing ahead of need": (300.0, True),
}

Samples = dict[str, list[float]]


def per_call_us(work: Callable[[str], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work("key")
    return (time.perf_counter() - start) / calls * 1e6


def in_turn(works: dict[str, tuple[Callable[[str], object], int]], samples: Samples) -> None:
    """Each once to warm up, then all of them, round by round."""
    for work, _ in works.values():
        work("key")
    for _ in range(ROUNDS):
        for name, (work, calls) in works.items():
            samples.setdefault(name, []).append(per_call_us(work, calls))


def scripts_run(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(entry["calls"] for name, entry in stats.items() if name.startswith("cmdstat_eval"))


def measure_round_trips(client: Any, limiter: Limiter) -> float:
    """Scripts per batch, over 200 batches."""
    limiter.check("counted")
    before = scripts_run(client)
    for _ in range(200 * BATCH):
        limiter.check("counted")
    return (scripts_run(client) - before) / 200


def measure_store(store: RedisStore, samples: Samples) -> None:
    strategy = fixed_window(LIMIT, HOUR_MS)
    strict = two_tier(strategy, store, "strict", prefix="strict")
    leased = two_tier(strategy, store, "leased", batch=BATCH, prefix="leased")
    stocked = two_tier(strategy, store, "leased", batch=2**30, prefix="stocked")
    in_turn(
        {
            "strict": (strict.check, 300),
            "leased, batch 100": (leased.check, 150 * BATCH),
            "local spend": (stocked.check, 100_000),
            "dict.get": ({"key": 1}.get, 100_000),
        },
        samples,
    )


def measure_server(port: int, samples: Samples) -> None:
    target = f"127.0.0.1:{port}"
    leased = LeasedLimiter(target, "api", "key", SERVER_BATCH, low_water=0, timeout_ms=20_000)
    ahead = LeasedLimiter(target, "api", "key", SERVER_BATCH, timeout_ms=20_000)
    with grpc.insecure_channel(target) as channel:
        check, request = RateLimiterStub(channel).Check, pb.CheckRequest(policy="api", key="key")
        in_turn(
            {
                "Check through the server": (lambda _: check(request), 100),
                "leased through the server": (leased.check, 50 * SERVER_BATCH),
                "leased ahead of need": (ahead.check, 50 * SERVER_BATCH),
            },
            samples,
        )
    leased.close()
    ahead.close()


@contextmanager
def redis_url() -> Iterator[str]:
    if len(sys.argv) > 1:
        yield sys.argv[1]
        return
    with Valkey() as server:
        yield server.url


def ratio(samples: Samples, above: str, below: str) -> float:
    """Of two things measured side by side: round by round, then the median."""
    pairs = zip(samples[above], samples[below], strict=True)
    return statistics.median(a / b for a, b in pairs)


def main() -> int:
    samples: Samples = {}
    with ExitStack() as stack:
        url = stack.enter_context(redis_url())
        client: Any = redis.Redis.from_url(url)
        store = RedisStore.from_url(url, timeout_ms=20_000)
        limiter = two_tier(fixed_window(LIMIT, HOUR_MS), store, batch=BATCH, prefix="count")
        trips = measure_round_trips(client, limiter)
        measure_store(store, samples)
        port = stack.enter_context(serving(POLICIES, url))
        measure_server(port, samples)
        store.close()
        client.close()
    values = (
        trips,
        ratio(samples, "strict", "leased, batch 100"),
        ratio(samples, "local spend", "dict.get"),
        ratio(samples, "Check through the server", "leased through the server"),
        ratio(samples, "Check through the server", "leased ahead of need"),
    )
    us = {name: round(statistics.median(each), 3) for name, each in samples.items()}
    for name, value in us.items():
        print(f"{name:54s} {value:10.3f} us")
    results = dict(zip(TARGETS, values, strict=True))
    missed = 0
    for name, value in results.items():
        target, more = TARGETS[name]
        word = "at least" if more else "at most"
        holds = value >= target if more else value <= target
        missed += not holds
        print(f"{name:54s} {value:10.2f} ({word} {target:g}: {'holds' if holds else 'MISSED'})")
    print(json.dumps({"us": us, "ratios": {name: round(v, 3) for name, v in results.items()}}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
