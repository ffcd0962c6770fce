"""`python -m bench.http_limits`: three limits over HTTP beside one, as JSON.

Both are asked of the same server, in turns, in memory and on Redis, by as many connections as a
member of the answer is named after. `cpu_us` is the server's own processor time per request, which
other programs disturb least; a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .http_load import closed, request
from .http_paths import CONNECTIONS, LOADS, Contender, _medians, _ratio, free_port, redis

AT_ONCE = (1, 8, CONNECTIONS)
_AMPLE = {"strategy": "fixedWindow", "limit": 10**9, "window": "1m"}
POLICIES = {
    "one": _AMPLE,
    "three": {
        "limits": {
            "user": {"by": "user", **_AMPLE},
            "tenant": {"by": "tenant", "strategy": "gcra", "limit": 10**9, "period": "30d"},
            "all": {"strategy": "tokenBucket", "capacity": 10**9, "refillPerSec": 10**6},
        }
    },
}

ONE, THREE = "policy of one limit", "policy of three limits"
LOADS[ONE] = [request(b'{"policy":"one","key":"alice"}', "/v1/check")]
_ATTRIBUTES = b'{"user":"alice","tenant":"acme"}'
LOADS[THREE] = [request(b'{"policy":"three","attributes":%b}' % _ATTRIBUTES, "/v1/check")]


def contender(name: str, store: str, folder: str) -> Contender:
    port, config = free_port(), Path(folder, "penstock.json")
    config.write_text(json.dumps({"version": 1, "limiters": POLICIES}))
    words = ["serve", "--no-grpc", "--http-port", str(port), "--store", store]
    words += ["--config", str(config)]
    return Contender(name, [sys.executable, "-m", "penstock.cli", *words], port, (ONE, THREE))


def run(seconds: float, rounds: int) -> dict[str, Any]:
    with redis() as url, TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        contenders = [contender("memory", "memory://", folder)]
        if url is not None:
            # Answers of a fail mode, on a machine that is busy, are not what is measured.
            contenders.append(contender("redis", f"{url}?timeout_ms=10000", folder))
        for each in contenders:
            each.start()
            stack.callback(each.stop)
            for load in each.loads:
                closed(each.port, LOADS[load], connections=CONNECTIONS, seconds=0.3)
        return {
            each.name: {str(count): compared(each, count, seconds, rounds) for count in AT_ONCE}
            for each in contenders
        }


def compared(each: Contender, connections: int, seconds: float, rounds: int) -> dict[str, Any]:
    each.rates.clear()
    each.cpu_us.clear()
    for _ in range(rounds):
        for load in each.loads:
            each.measure(load, seconds, connections)
    return {
        "rate_per_s": _medians(each.rates),
        "cpu_us_per_request": _medians(each.cpu_us),
        "time_ratio": _ratio(each.rates[ONE], each.rates[THREE]),
        "cpu_ratio": _ratio(each.cpu_us[THREE], each.cpu_us[ONE]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.http_limits", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="per policy and round")
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    print(json.dumps(run(args.seconds, args.rounds), indent=2))


if __name__ == "__main__":
    main()
