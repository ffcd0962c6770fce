"""Clients that ask a service while others do their worst to it, and what they see.

What a client sees while a worker is missing is kept apart from what it sees otherwise.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import multiprocessing
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc

from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub
from tests.service.http.serving import Client

__all__ = [
    "TOKEN",
    "Disturbances",
    "GrpcCrowd",
    "HttpUser",
    "Scraper",
    "User",
    "grpc_check",
    "health_of",
    "kind_of_error",
]

TOKEN = "a-token-of-enough-characters"
BEARER = {"authorization": f"Bearer {TOKEN}"}
PATIENCE_S = 20.0
# Between an ask and the next.
PACE_S = 0.05
# A channel comes back soon after its worker is replaced.
_RECONNECT = ("grpc.max_reconnect_backoff_ms", 1_000)

Asked = Callable[[], str]


class Disturbances:
    """When a worker was missing: from a signal to when its successor serves."""

    def __init__(self) -> None:
        self.count = 0
        self._spans: list[list[float]] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        span = [time.monotonic(), float("inf")]
        self._spans.append(span)
        self.count += 1
        yield
        span[1] = time.monotonic()

    def touch(self, began: float, ended: float) -> bool:
        return any(start <= ended and began <= end for start, end in self._spans)


@dataclass
class Seen:
    """What clients of one kind saw."""

    latencies_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        ordered = sorted(self.latencies_s)
        if not ordered:
            return {"asked": 0, "errors": dict(self.errors)}
        return {
            "asked": len(ordered) + self.errors.total(),
            "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 1),
            "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 1),
            "worst_ms": round(ordered[-1] * 1e3, 1),
            "errors": dict(self.errors),
        }


class User(threading.Thread):
    """Asks now and then. `ask` returns what is wrong with the answer, or nothing."""

    def __init__(
        self, name: str, ask: Asked, disturbances: Disturbances, pace_s: float = PACE_S
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.undisturbed, self.disturbed = Seen(), Seen()
        self.ask = ask
        self._disturbances = disturbances
        self._pace_s = pace_s
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._pace_s * random.uniform(0.5, 1.5)):
            began = time.monotonic()
            wrong = kind_of_error(self.ask)
            ended = time.monotonic()
            is_disturbed = self._disturbances.touch(began, ended)
            seen = self.disturbed if is_disturbed else self.undisturbed
            if wrong:
                seen.errors[wrong] += 1
            else:
                seen.latencies_s.append(ended - began)

    def stop(self) -> None:
        self._over.set()
        self.join(2 * PATIENCE_S)


def kind_of_error(ask: Asked) -> str:
    try:
        return ask()
    except grpc.RpcError as error:
        return str(error.code().name)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__


class HttpUser:
    """Keeps its connection, unless that has failed."""

    def __init__(self, port: int, method: str, path: str, body: Any = None) -> None:
        self._port, self._asked = port, (method, path, body, BEARER)
        self._client: Client | None = None

    def ask(self) -> bytes | str:
        """The reply's body, or its status where that is not 200."""
        client, self._client = self._client or Client(self._port, PATIENCE_S), None
        try:
            reply = client.ask(*self._asked)
        except BaseException:
            client.close()
            raise
        self._client = client
        return reply.body if reply.status == 200 else str(reply.status)

    def check(self) -> str:
        reply = self.ask()
        return reply if isinstance(reply, str) else ""


class Scraper(HttpUser):
    """Looks at `/metrics`: `last` are the numbers seen there, and counters must not go back."""

    def __init__(self, port: int) -> None:
        super().__init__(port, "GET", "/metrics")
        self.last: dict[str, float] = {}

    def check(self) -> str:
        reply = self.ask()
        if isinstance(reply, str):
            return reply
        lines = [line for line in reply.decode().splitlines() if not line.startswith("#")]
        shown = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
        before, self.last = self.last, shown
        back = [name for name, value in before.items() if shown.get(name, 0) < value]
        counters = [name for name in back if name.partition("{")[0].endswith("_total")]
        return f"{counters[0]} went back" if counters else ""


def health_of(port: int) -> Asked:
    def ask() -> str:
        client = Client(port, PATIENCE_S)
        try:
            status = client.get("/health").status
        finally:
            client.close()
        return "" if status == 200 else str(status)

    return ask


def grpc_check(port: int) -> Asked:
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", [_RECONNECT])
    call = RateLimiterStub(channel).Check
    request = pb.CheckRequest(policy="plenty", key="user")

    def ask() -> str:
        reply = call(request, timeout=PATIENCE_S, metadata=tuple(BEARER.items()))
        return "" if reply.decision.allowed else "denied"

    return ask


class GrpcCrowd:
    """Waves of calls, from a process of its own; how each ended comes back."""

    def __init__(self, port: int, channels: int, calls: int, disturbances: Disturbances) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ends, theirs = spawn.Pipe()
        args = (port, channels, calls, theirs)
        self._process = spawn.Process(target=_waves, args=args, daemon=True)
        self._disturbances = disturbances
        self.undisturbed: Counter[str] = Counter()
        self.disturbed: Counter[str] = Counter()

    def __enter__(self) -> GrpcCrowd:
        self._process.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.join()

    def collect(self) -> None:
        while self._ends.poll():
            ended, code = self._ends.recv()
            touched = self._disturbances.touch(ended, ended)
            (self.disturbed if touched else self.undisturbed)[code] += 1


def _waves(port: int, channels: int, calls: int, ends: Any) -> None:
    options = [("grpc.use_local_subchannel_pool", 1), _RECONNECT]
    opened = [grpc.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(channels)]
    checks = [RateLimiterStub(channel).Check for channel in opened]
    metadata = tuple(BEARER.items())
    ended: deque[tuple[float, str]] = deque()

    def note(future: Any) -> None:
        ended.append((time.monotonic(), future.code().name))

    for wave in itertools.count():
        for n, check in itertools.product(range(calls), checks):
            request = pb.CheckRequest(policy="plenty", key=f"{wave}-{n % 50}")
            check.future(request, timeout=60, metadata=metadata).add_done_callback(note)
        left = calls * channels
        while left:
            time.sleep(0.1)
            while ended:
                ends.send(ended.popleft())
                left -= 1
