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
from tempfile import TemporaryDirectory
from typing import Any

from .http_load import closed, paced, request, traced

ROOT = Path(__file__).resolve().parents[1]
CONNECTIONS = 64

# What is measured, and the bound that it has to keep.
AT_LEAST = {
    "rate_over_fastapi": 3.0,
    "rate_over_uvicorn": 1.8,
    "traced_over_uvicorn": 1.8,
    "clients_over_uvicorn": 1.8,
    "redis_over_uvicorn": 0.5,
}
BELOW = {"p99_over_p50": 5.0}

PAYLOAD = request(b'{"key":"alice","limit":1000000000,"window_ms":60000}')
GET = b"GET /check/client-%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

# More than any server would remember.
DISTINCT = 8_192
LOADS = {
    "same": [PAYLOAD],
    "traced": [traced(PAYLOAD, number) for number in range(DISTINCT)],
    "clients": [traced(GET % number, number) for number in range(DISTINCT)],
}
"""What is asked: the same request over and over; the same with headers that differ from request to
request; and for clients that the path names, with such headers."""


@dataclass
class Contender:
    """A server in a process of its own."""

    name: str
    command: list[str]
    port: int
    loads: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None
    rates: dict[str, list[float]] = field(default_factory=dict)
    cpu_us: dict[str, list[float]] = field(default_factory=dict)

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
        """Of all its threads; in nanoseconds to the kernel, where `stat` counts hundredths."""
        assert self.process is not None
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def measure(self, name: str, seconds: float, connections: int = CONNECTIONS) -> None:
        before = self.cpu_s()
        load = closed(self.port, LOADS[name], connections=connections, seconds=seconds)
        self.rates.setdefault(name, []).append(load.rate)
        cpu_us = (self.cpu_s() - before) / load.answered * 1e6
        self.cpu_us.setdefault(name, []).append(cpu_us)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def penstock(name: str, store: str, folder: str, *loads: str) -> Contender:
    port, config = free_port(), Path(folder, "penstock.json")
    ample = {"strategy": "fixedWindow", "limit": 10**9, "window": "1m"}
    config.write_text(json.dumps({"version": 1, "limiters": {"default": ample}}))
    words = ["serve", "--no-grpc", "--http-port", str(port), "--store", store]
    words += ["--config", str(config)]
    return Contender(name, [sys.executable, "-m", "penstock.cli", *words], port, loads)


def uvicorn(name: str, target: str, *loads: str) -> Contender:
    port = free_port()
    tuned = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "error"]
    made = ["--factory"] if ":make_" in target else []
    command = [sys.executable, "-m", "uvicorn", target, "--port", str(port), *tuned, *made]
    return Contender(name, command, port, loads)


@contextlib.contextmanager
def redis() -> Iterator[str | None]:
    """A server of its own, if the wheel is installed."""
    try:
        from tests.servers import MissingError, Valkey
    except ImportError:
        yield None
        return
    try:
        server = Valkey()
    except MissingError:
        yield None
        return
    with server:
        yield server.url


def run(seconds: float, rounds: int) -> dict[str, Any]:
    with redis() as url, TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        contenders = [
            penstock("penstock", "memory://", folder, *LOADS),
            uvicorn("uvicorn", "bench.http_peers:constant", *LOADS),
            uvicorn("fastapi", "bench.http_peers:make_fastapi", "same"),
        ]
        if url is not None:
            contenders.append(penstock("penstock_redis", url, folder, "same"))
        for contender in contenders:
            contender.start()
            stack.callback(contender.stop)
        for contender in contenders:
            closed(contender.port, [PAYLOAD], connections=CONNECTIONS, seconds=0.5)
        for _ in range(rounds):
            for load in LOADS:
                for contender in contenders:
                    if load in contender.loads:
                        contender.measure(load, seconds)
        return _report(contenders, seconds)


def _report(contenders: list[Contender], seconds: float) -> dict[str, Any]:
    ours, bare = contenders[:2]
    rates, cpu_us = ours.rates["same"], ours.cpu_us["same"]
    return {
        "connections": CONNECTIONS,
        "rounds": len(rates),
        "rate_per_s": {c.name: _medians(c.rates) for c in contenders},
        "cpu_us_per_request": {c.name: _medians(c.cpu_us) for c in contenders},
        "rate_ratio": {c.name: _ratio(rates, c.rates["same"]) for c in contenders[1:]},
        "cpu_ratio": {c.name: _ratio(c.cpu_us["same"], cpu_us) for c in contenders[1:]},
        "rate_over_uvicorn": {load: _ratio(ours.rates[load], bare.rates[load]) for load in LOADS},
        "cpu_over_uvicorn": {load: _ratio(bare.cpu_us[load], ours.cpu_us[load]) for load in LOADS},
        "redis_over_uvicorn": (
            _ratio(contenders[3].rates["same"], bare.rates["same"]) if contenders[3:] else None
        ),
        "half_peak": {c.name: _half_peak(c, seconds) for c in contenders[:2]},
    }


def _medians(of: dict[str, list[float]]) -> dict[str, float]:
    return {load: round(median(figures), 1) for load, figures in of.items()}


def missed(report: dict[str, Any]) -> list[str]:
    """The targets that a report does not reach; what was not measured is not missed."""
    values = {
        "rate_over_fastapi": report["rate_ratio"]["fastapi"],
        "rate_over_uvicorn": report["rate_over_uvicorn"]["same"],
        "traced_over_uvicorn": report["rate_over_uvicorn"]["traced"],
        "clients_over_uvicorn": report["rate_over_uvicorn"]["clients"],
        "redis_over_uvicorn": report["redis_over_uvicorn"],
        "p99_over_p50": report["half_peak"]["penstock"]["p99_over_p50"],
    }
    found = {name: value for name, value in values.items() if value is not None}
    low = [name for name, bound in AT_LEAST.items() if name in found and found[name] < bound]
    high = [name for name, bound in BELOW.items() if found[name] >= bound]
    return low + high


def _half_peak(contender: Contender, seconds: float) -> dict[str, float]:
    """Latency at half of the peak, as the median of many short spans: a long one tells more about
    what else the machine did."""
    rate = median(contender.rates["same"]) / 2
    spans = [
        paced(contender.port, PAYLOAD, connections=CONNECTIONS, seconds=seconds / 4, rate=rate)
        for _ in range(4 * len(contender.rates["same"]))
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
