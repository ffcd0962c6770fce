"""The worst that clients and signals can do, all at once: `python -m bench.soak [--seconds 60]`.

One service, which asks for a token, and around it, in processes of their own:

- the flood: 200 connections that pipeline `GET /ready` without a token;
- the crowd: 1,500 connections that ask for `/ready` in turn, without a token; and gRPC calls with
  it, 20 channels with 200 calls each, wave after wave;
- the signals: a policy file that changes, with SIGHUP; and in turn a worker that is stopped
  (SIGSTOP) and one that is killed (SIGKILL); with `--store memory` there is one process, which
  is only told to reload.

Beside them a few clients ask now and then, as users would: `/health` on a new connection, checks
with the token over HTTP and gRPC, `/metrics`. What they see is printed: memory over idle, the worst
latencies, errors by kind. While a worker is being replaced, requests that it had are lost and its
share of the port answers nobody; what is seen then is told apart. The last line is JSON. Ends with
1 if something is wrong that no signal explains.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import Valkey
from tests.servers.keeper import family
from tests.service.http.crowd import Flood
from tests.service.http.serving import Penstock

from .soak_clients import (
    TOKEN,
    Disturbances,
    GrpcCrowd,
    HttpUser,
    Scraper,
    User,
    grpc_check,
    health_of,
    kind_of_error,
)

READY = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
MAX_OVER_IDLE_MIB = 150
MAX_HEALTH_S = 0.1
SCRAPE_PACE_S = 1.0
RELOAD_EVERY_S = 3.0
DISTURB_EVERY_S = 15.0
# From when all ports are listened on again to when clients have found out.
SETTLE_S = 2.0


class Signals(threading.Thread):
    """Reloads, and workers that are stopped or killed."""

    def __init__(self, server: Penstock, policies: Path, disturbances: Disturbances) -> None:
        super().__init__(name="signals", daemon=True)
        self.reloads = 0
        self.not_replaced = 0
        self._server, self._policies, self._disturbances = server, policies, disturbances
        self._listeners = listeners(server)
        self._over = threading.Event()
        self._signals = itertools.cycle((signal.SIGSTOP, signal.SIGKILL))

    def run(self) -> None:
        next_one = time.monotonic() + DISTURB_EVERY_S / 2
        while not self._over.wait(RELOAD_EVERY_S):
            self.reloads += 1
            write_policies(self._policies, self.reloads)
            os.kill(self._server.pid, signal.SIGHUP)
            if time.monotonic() >= next_one and (pids := workers(self._server.pid)):
                self._disturb(random.choice(pids), next(self._signals))
                next_one = time.monotonic() + DISTURB_EVERY_S

    def stop(self) -> None:
        self._over.set()
        self.join(90)

    def _disturb(self, pid: int, number: signal.Signals) -> None:
        with self._disturbances.one():
            os.kill(pid, number)
            deadline = time.monotonic() + 60
            while pid in workers(self._server.pid) or listeners(self._server) != self._listeners:
                if time.monotonic() > deadline:
                    self.not_replaced += 1
                    break
                time.sleep(0.1)
            time.sleep(SETTLE_S)


def listeners(server: Penstock) -> int:
    """How many sockets listen on the service's ports."""
    ports = {f"{port:04X}" for port in (server.port, server.grpc_port)}
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            count += fields[3] == "0A" and fields[1].rpartition(":")[2] in ports
    return count


def workers(pid: int) -> list[int]:
    """The processes that a supervisor keeps; none where one process does all."""
    return [
        member
        for member in family(pid)[1:]
        if b"spawn_main" in _read(f"/proc/{member}/cmdline") and rss_mib(member)
    ]


def serving(pid: int) -> list[int]:
    return workers(pid) or [pid]


def rss_mib(pid: int) -> float:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20 if fields else 0.0


def _read(path: str) -> bytes:
    """Nothing of a process that is gone."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def write_policies(path: Path, number: int) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(
        "version: 1\nlimiters:\n"
        "  plenty: {strategy: fixedWindow, limit: 100000000, window: 1s}\n"
        f"  changing: {{strategy: gcra, limit: {number + 1}, period: 1s}}\n"
    )
    fresh.replace(path)


@contextlib.contextmanager
def store_url(name: str) -> Iterator[str]:
    if name == "memory":
        yield "memory://"
        return
    with Valkey() as server:
        yield f"{server.url}?timeout_ms=5000"


@dataclass
class Memory:
    """Of one process, the most; MiB over what one takes that has nothing to do."""

    idle: float
    most: float = 0.0
    after: float = 0.0

    def look(self, pids: list[int]) -> float:
        over = max((rss_mib(pid) for pid in pids), default=0.0) - self.idle
        self.most = max(self.most, over)
        return over


def soak(server: Penstock, policies: Path, seconds: float) -> dict[str, Any]:
    disturbances = Disturbances()
    scraper = Scraper(server.port)
    asked = {"key": "user", "limit": 1_000_000_000, "window_ms": 60_000}
    checker = HttpUser(server.port, "POST", "/check", asked)
    users = [
        User("/health, new connections", health_of(server.port), disturbances),
        User("check over HTTP", checker.check, disturbances),
        User("check over gRPC", grpc_check(server.grpc_port), disturbances),
        User("/metrics", scraper.check, disturbances, SCRAPE_PACE_S),
    ]
    for user in users:
        assert not kind_of_error(user.ask), user.name
    time.sleep(1)
    memory = Memory(max(rss_mib(pid) for pid in serving(server.pid)))
    signals = Signals(server, policies, disturbances)
    with (
        Flood(server.port, READY, 200),
        Flood(server.port, READY, 1_500, in_turn=True),
        GrpcCrowd(server.grpc_port, 20, 200, disturbances) as crowd,
    ):
        for thread in (*users, signals):
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            memory.look(serving(server.pid))
            crowd.collect()
            time.sleep(0.2)
        signals.stop()
        for user in users:
            user.stop()
        crowd.collect()
    time.sleep(3)
    memory.after = max(rss_mib(pid) for pid in serving(server.pid)) - memory.idle
    if kind_of_error(scraper.check):  # its connection may have ended with the last worker
        kind_of_error(scraper.check)
    shown = ("penstock_http_shed_total", "penstock_grpc_shed_total")
    return {
        "seconds": seconds,
        "reloads": signals.reloads,
        "disturbances": disturbances.count,
        "not_replaced": signals.not_replaced,
        "memory_mib": {
            "idle": round(memory.idle, 1),
            "most_over_idle": round(memory.most, 1),
            "after_over_idle": round(memory.after, 1),
        },
        "users": {
            user.name: {
                "undisturbed": user.undisturbed.to_json(),
                "disturbed": user.disturbed.to_json(),
            }
            for user in users
        },
        "grpc_crowd": {"undisturbed": dict(crowd.undisturbed), "disturbed": dict(crowd.disturbed)},
        "shown": {name: scraper.last.get(name) for name in shown},
    }


def wrongs(result: dict[str, Any], log: str) -> list[str]:
    """What no signal explains."""
    found = []
    over = result["memory_mib"]["most_over_idle"]
    if over > MAX_OVER_IDLE_MIB:
        found.append(f"{over} MiB over idle, more than {MAX_OVER_IDLE_MIB}")
    if result["not_replaced"]:
        found.append(f"{result['not_replaced']} workers were not replaced within a minute")
    for name, seen in result["users"].items():
        if errors := seen["undisturbed"]["errors"]:
            found.append(f"{name}: {errors}")
    bad = set(result["grpc_crowd"]["undisturbed"]) - {"OK", "RESOURCE_EXHAUSTED"}
    if bad:
        found.append(f"gRPC calls of the crowd ended with {', '.join(sorted(bad))}")
    health = result["users"]["/health, new connections"]["undisturbed"]
    if health.get("p50_ms", 0) > MAX_HEALTH_S * 1e3:
        found.append(f"/health takes {health['p50_ms']} ms, more than {MAX_HEALTH_S * 1e3:g}")
    if "Traceback" in log:
        found.append(f"{log.count('Traceback')} tracebacks in the log")
    return found


def report(result: dict[str, Any]) -> None:
    memory = result["memory_mib"]
    print(
        f"{result['seconds']:g} s, {result['reloads']} reloads, "
        f"{result['disturbances']} workers stopped or killed\n"
        f"memory of a worker: {memory['idle']} MiB idle, at most {memory['most_over_idle']} more, "
        f"{memory['after_over_idle']} more afterwards"
    )
    for name, seen in result["users"].items():
        for when, what in seen.items():
            print(f"{name}, {when}: " + ", ".join(f"{k} {v}" for k, v in what.items()))
    print("calls of the gRPC crowd:", result["grpc_crowd"])
    print("turned away:", result["shown"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--store", choices=("valkey", "memory"), default="valkey")
    parser.add_argument("--log", type=Path, help="keep the service's log here")
    args = parser.parse_args()
    count = "2" if args.store == "valkey" else "1"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        token, policies = folder / "token", folder / "policies.yaml"
        token.write_text(TOKEN)
        write_policies(policies, 0)
        flags = ["--workers", count, "--token-file", str(token), "--config", str(policies)]
        url = stack.enter_context(store_url(args.store))
        server = stack.enter_context(Penstock("--store", url, *flags, grpc=True))
        result = soak(server, policies, args.seconds)
        began = time.monotonic()
        log_path = server.log_path
        server.stop()
        result["stopped_in_s"] = round(time.monotonic() - began, 2)
        log = log_path.read_text(errors="replace")
        if args.log is not None:
            args.log.write_text(log)
    result["wrong"] = wrongs(result, log)
    report(result)
    print(*(f"wrong: {wrong}" for wrong in result["wrong"]), sep="\n")
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
