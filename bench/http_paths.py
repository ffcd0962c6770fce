"""`python -m bench.http_paths`: the HTTP server beside its peers, in one run, as JSON.

Ratios are what counts. Contenders take turns, so that whatever else the machine does falls on all
of them, and a ratio is the median over the rounds. `cpu_us` is the server's own processor time per
request, which other programs disturb least. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from .http_load import closed, paced, request

ROOT = Path(__file__).resolve().parents[1]
CONNECTIONS = 64

# What is measured, and the bound that it has to keep.
AT_LEAST = {"rate_over_fastapi": 3.0, "rate_over_uvicorn": 1.5, "redis_share_of_memory": 0.4}
BELOW = {"p99_over_p50": 5.0}

PAYLOAD = request(b'{"key":"alice","limit":1000000000,"window_ms":60000}')


@dataclass
class Contender:
    """A server in a process of its own."""

    name: str
    command: list[str]
    port: int
    process: subprocess.Popen[bytes] | None = None
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def start(self) -> None:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        env = {**os.environ, "PYTHONPATH": paths}
        self.process = subprocess.Popen(
            self.command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} does not listen: {' '.join(self.command)}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def cpu_s(self) -> float:
        assert self.process is not None
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def measure(self, seconds: float) -> None:
        before = self.cpu_s()
        load = closed(self.port, PAYLOAD, connections=CONNECTIONS, seconds=seconds)
        self.rates.append(load.rate)
        self.cpu_us.append((self.cpu_s() - before) / load.answered * 1e6)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def penstock(name: str, store: str) -> Contender:
    port = free_port()
    words = ["serve", "--no-grpc", "--http-port", str(port), "--store", store]
    return Contender(name, [sys.executable, "-m", "penstock.cli", *words], port)


def uvicorn(name: str, target: str, *flags: str) -> Contender:
    port = free_port()
    tuned = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "error"]
    command = [sys.executable, "-m", "uvicorn", target, "--port", str(port), *tuned, *flags]
    return Contender(name, command, port)


@contextlib.contextmanager
def redis() -> Iterator[str | None]:
    """A server of its own, if the wheel is installed."""
    try:
        from tests.servers import MissingError, Valkey

        server = Valkey()
    except (ImportError, MissingError):
        yield None
        return
    with server:
        yield server.url


def run(seconds: float, rounds: int) -> dict[str, Any]:
    with redis() as url, contextlib.ExitStack() as stack:
        contenders = [
            penstock("penstock", "memory://"),
            uvicorn("uvicorn", "bench.http_peers:constant"),
            uvicorn("fastapi", "bench.http_peers:make_fastapi", "--factory"),
        ]
        if url is not None:
            contenders.append(penstock("penstock_redis", url))
        for contender in contenders:
            contender.start()
            stack.callback(contender.stop)
        for contender in contenders:
            closed(contender.port, PAYLOAD, connections=CONNECTIONS, seconds=0.5)
        for _ in range(rounds):
            for contender in contenders:
                contender.measure(seconds)
        return _report(contenders, seconds)


def _report(contenders: list[Contender], seconds: float) -> dict[str, Any]:
    ours = contenders[0]
    return {
        "connections": CONNECTIONS,
        "rounds": len(ours.rates),
        "rate_per_s": {c.name: round(median(c.rates)) for c in contenders},
        "cpu_us_per_request": {c.name: round(median(c.cpu_us), 1) for c in contenders},
        "rate_ratio": {c.name: _ratio(ours.rates, c.rates) for c in contenders[1:]},
        "cpu_ratio": {c.name: _ratio(c.cpu_us, ours.cpu_us) for c in contenders[1:]},
        "redis_share_of_memory": (
            _ratio(contenders[3].rates, ours.rates) if len(contenders) > 3 else None
        ),
        "half_peak": {c.name: _half_peak(c, seconds) for c in contenders[:2]},
    }


def missed(report: dict[str, Any]) -> list[str]:
    """The targets that a report does not reach; what was not measured is not missed."""
    values = {
        "rate_over_fastapi": report["rate_ratio"]["fastapi"],
        "rate_over_uvicorn": report["rate_ratio"]["uvicorn"],
        "redis_share_of_memory": report["redis_share_of_memory"],
        "p99_over_p50": report["half_peak"]["penstock"]["p99_over_p50"],
    }
    found = {name: value for name, value in values.items() if value is not None}
    low = [name for name, bound in AT_LEAST.items() if name in found and found[name] < bound]
    high = [name for name, bound in BELOW.items() if found[name] >= bound]
    return low + high


def _half_peak(contender: Contender, seconds: float) -> dict[str, float]:
    """Latency at half of the peak, as the median of many short spans: a long one tells more about
    what else the machine did."""
    rate = median(contender.rates) / 2
    spans = [
        paced(contender.port, PAYLOAD, connections=CONNECTIONS, seconds=seconds / 4, rate=rate)
        for _ in range(4 * len(contender.rates))
    ]
    p50s = [span.quantile_s(0.5) for span in spans]
    p99s = [span.quantile_s(0.99) for span in spans]
    return {
        "rate_per_s": round(rate),
        "p50_us": round(median(p50s) * 1e6),
        "p99_us": round(median(p99s) * 1e6),
        "p99_over_p50": _ratio(p99s, p50s),
    }


def _ratio(above: list[float], below: list[float]) -> float:
    return round(median(a / b for a, b in zip(above, below, strict=True)), 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.http_paths", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="per contender and round")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    report = run(args.seconds, args.rounds)
    failed = missed(report)
    targets = {"at_least": AT_LEAST, "below": BELOW, "missed": failed}
    print(json.dumps({**report, "targets": targets}, indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
