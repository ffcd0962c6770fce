"""Stops, crowds and outages, on real processes and a real store."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.servers import NotReady, Valkey, eventually, require

from .serving import Client, Penstock

LIMIT = 10_000_000
INLINE: dict[str, Any] = {"key": "k", "limit": LIMIT, "window_ms": 3_600_000}


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    require("valkey")
    with Valkey() as server:
        yield server


@dataclass
class Crowd:
    """Threads that ask without a pause, each on a connection of its own, until told or cut off."""

    port: int
    asked: dict[str, Any]
    size: int = 8
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(self.size)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        client = Client(self.port)
        with contextlib.suppress(OSError, http.client.HTTPException):
            while not self._stop.is_set():
                began = time.monotonic()
                status = client.post("/check", self.asked).status
                with self._lock:
                    self.statuses[status] += 1
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        client.close()

    def taken(self) -> Counter[int]:
        """The statuses since the last time."""
        with self._lock:
            statuses, self.statuses = self.statuses, Counter()
            return statuses


def test_a_stop_under_load_leaves_no_admitted_request_unanswered(valkey: Valkey) -> None:
    """What the store has counted and what clients were told is the same number."""
    with Penstock("--store", valkey.patient_url) as server:
        with Crowd(server.port, INLINE) as crowd:
            time.sleep(0.7)
            began = time.monotonic()
            process = server.process()
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
            assert time.monotonic() - began < 5
        assert "Traceback" not in server.log_path.read_text()
    assert crowd.statuses.keys() == {200}
    assert crowd.statuses[200] > 100
    with Penstock("--store", valkey.patient_url) as other:
        client = Client(other.port)
        left = client.post("/check", INLINE).json["remaining"]
        client.close()
    assert LIMIT - 1 - left == crowd.statuses[200]


def test_a_quiet_connection_does_not_hold_up_a_stop() -> None:
    """It may bring one more request, which is its last, and is closed soon."""
    with Penstock() as server:
        client, quiet = Client(server.port), Client(server.port)
        assert client.get("/check/a").status == 200
        assert quiet.get("/health").status == 200
        process = server.process()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        late = client.get("/check/a")
        assert (late.status, late.headers["connection"]) == (200, "close")
        assert process.wait(5) == 0
        client.close()
        quiet.close()


def test_two_processes_on_one_store_admit_exactly_the_limit(valkey: Valkey) -> None:
    """200 at once, half through each, at a limit of 50."""
    asked = {"key": "crowd", "limit": 50, "window_ms": 3_600_000}
    with (
        Penstock("--store", valkey.patient_url) as one,
        Penstock("--store", valkey.patient_url) as two,
    ):
        start = threading.Barrier(40)

        def ask(number: int) -> list[int]:
            client = Client((one if number % 2 else two).port)
            start.wait()
            statuses = [client.post("/check", asked).status for _ in range(5)]
            client.close()
            return statuses

        with ThreadPoolExecutor(40) as pool:
            statuses = Counter(s for each in pool.map(ask, range(40)) for s in each)
    assert statuses == {200: 50, 429: 150}


def test_both_servers_of_two_processes_admit_exactly_the_limit(
    valkey: Valkey, tmp_path: Path
) -> None:
    """200 at once through four servers, at a limit of 50."""
    grpc: Any = pytest.importorskip("grpc")
    from penstock.wire.proto import rate_limiter_pb2 as pb
    from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub

    config = tmp_path / "penstock.json"
    policy = {"strategy": "fixedWindow", "limit": 50, "window": "1h"}
    config.write_text(json.dumps({"version": 1, "limiters": {"crowd": policy}}))
    flags = ("--store", valkey.patient_url, "--config", str(config))
    start = threading.Barrier(40)

    def over_http(server: Penstock) -> list[bool]:
        client = Client(server.port)
        start.wait()
        asked = {"policy": "crowd", "key": "k"}
        allowed = [client.post("/check", asked).json["allowed"] for _ in range(5)]
        client.close()
        return allowed

    def over_grpc(server: Penstock) -> list[bool]:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = RateLimiterStub(channel)
            start.wait()
            asked = pb.CheckRequest(policy="crowd", key="k")
            return [stub.Check(asked).decision.allowed for _ in range(5)]

    with Penstock(*flags, grpc=True) as one, Penstock(*flags, grpc=True) as two:
        ways = [(over_http, one), (over_http, two), (over_grpc, one), (over_grpc, two)] * 10
        with ThreadPoolExecutor(40) as pool:
            asks = [pool.submit(way, server) for way, server in ways]
            allowed = Counter(each for ask in asks for each in ask.result())
    assert allowed == {True: 50, False: 150}


def test_workers_share_a_port_and_a_limit(valkey: Valkey) -> None:
    """And what one of them counted, all of them show."""
    with Penstock("--store", valkey.patient_url, "--workers", "2") as server:
        asked = {"key": "w", "limit": 20, "window_ms": 3_600_000}
        statuses: Counter[int] = Counter()
        for _ in range(30):
            client = Client(server.port)
            statuses[client.post("/check", asked).status] += 1
            client.close()
        assert statuses == {200: 20, 429: 10}

        def counted() -> None:
            """Whoever is asked counts for all."""
            client = Client(server.port)
            lines = client.get("/metrics").body.decode().splitlines()
            client.close()
            for outcome, count in (("allowed", 20), ("denied", 10)):
                line = f'penstock_decisions_total{{policy="inline",outcome="{outcome}"}} {count}'
                if line not in lines:
                    raise NotReady(line)

        for _ in range(5):
            eventually(counted, within=3, what="the sum of all workers")
        process = server.process()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert "Traceback" not in server.log_path.read_text()


def _workers(pid: int) -> set[int]:
    """The living children that serve; the interpreter's own helper process does not count."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        int(child)
        for child in children
        if _alive(int(child)) and b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    }


def test_a_worker_that_dies_is_replaced_and_none_outlives_the_parent(valkey: Valkey) -> None:
    """The port stays served, and a SIGKILL of the parent leaves nobody behind."""
    with Penstock("--store", valkey.patient_url, "--workers", "2") as server:

        def greeted() -> None:
            """Said once all workers serve; one that dies before that ends the start."""
            if "try:" not in server.log_path.read_text():
                raise NotReady("no greeting yet")

        eventually(greeted, within=20, what="the greeting")
        before = _workers(server.pid)
        os.kill(min(before), signal.SIGKILL)

        def replaced() -> set[int]:
            now = _workers(server.pid)
            if min(before) in now or len(now) < len(before):
                raise NotReady(f"{before} became {now}")
            return now

        after = eventually(replaced, within=20, what="a new worker")

        def served() -> None:
            client = Client(server.port)
            assert client.get("/health").status == 200
            client.close()

        for _ in range(8):
            eventually(served, within=20, what="the port")
        os.kill(server.pid, signal.SIGKILL)

        def gone() -> None:
            left = {pid for pid in after if _alive(pid)}
            if left:
                raise NotReady(f"{left} live on")

        eventually(gone, within=20, what="the workers' end")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


POLICIES = """
version: 1
limiters:
  lenient: {strategy: fixedWindow, limit: 10000000, window: 1h, fail: open}
  strict: {strategy: fixedWindow, limit: 10000000, window: 1h, fail: closed}
  honest: {strategy: fixedWindow, limit: 10000000, window: 1h, fail: error}
"""
WHILE_AWAY = {"lenient": 200, "strict": 429, "honest": 503}


def test_policies_fail_as_they_say_while_the_store_is_away(valkey: Valkey, tmp_path: Path) -> None:
    """Under load, each within its deadline, and all recover by themselves."""
    pytest.importorskip("yaml")
    config = tmp_path / "penstock.yaml"
    config.write_text(POLICIES)
    with (
        Penstock("--store", f"{valkey.url}?timeout_ms=500", "--config", str(config)) as server,
        contextlib.ExitStack() as stack,
    ):
        crowds = {
            name: stack.enter_context(Crowd(server.port, {"policy": name, "key": "k"}, size=2))
            for name in WHILE_AWAY
        }
        time.sleep(0.5)
        for name, crowd in crowds.items():
            assert crowd.taken().keys() == {200}, name
        valkey.kill()
        time.sleep(1.0)
        for crowd in crowds.values():
            crowd.taken()
        time.sleep(1.5)
        for name, crowd in crowds.items():
            statuses = crowd.taken()
            assert statuses.keys() == {WHILE_AWAY[name]}, (name, statuses)
        valkey.restart()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.3)
            if all(crowd.taken().keys() == {200} for crowd in crowds.values()):
                break
        client = Client(server.port)
        back = client.post("/check", {"policy": "strict", "key": "other"})
        assert (back.status, back.json["remaining"]) == (200, LIMIT - 1)
        assert client.get("/ready").status == 200
        client.close()
        assert max(crowd.slowest_s for crowd in crowds.values()) < 10
        log = server.log_path.read_text()
        assert "Traceback" not in log
        assert "WARNING penstock.service: policy" in log
