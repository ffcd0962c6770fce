"""The load generator of `penstock load`: connections, pacing, and the report.

A `Client` is one connection with one request at a time. Requests are sent as soon as a client is
free, or at a fixed rate. If a request is due while all clients are waiting for answers, its latency
is counted from when it was due: so the report includes the time that requests wait for a service
that stalls (no coordinated omission).

Latencies are counted in buckets that grow by one percent each, so memory does not grow with time,
and a quantile is accurate to half a percent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol, cast

__all__ = ["Client", "LoadReport", "LoadTarget", "Pace", "put_under_load"]


_LONGEST_HEAD = 65_536

Answered = Callable[["Client", int, str], None]
"""Called with the status, 0 if there was no answer, and the problem if it was not a decision."""


class Client(asyncio.Protocol):
    """HTTP/1.1, one request at a time."""

    def __init__(self, answered: Answered, lost: Callable[[Client], None]) -> None:
        self._answered = answered
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._busy = False
        self.since: float = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes, since: float) -> None:
        """Send a request, whose latency counts from `since`."""
        assert self._transport is not None
        self._busy = True
        self.since = since
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            if len(self._data) > _LONGEST_HEAD:
                self._give_up("an answer without an end of its head")
            return
        head = self._data[:end]
        length = _length_of(head)
        if length is None or not head.startswith(b"HTTP/1."):
            self._give_up("an answer that is not HTTP/1.1 with a Content-Length")
            return
        whole = end + 4 + length
        if len(self._data) < whole:
            return
        body, self._data = self._data[end + 4 : whole], self._data[whole:]
        if b"\r\nconnection: close" in head.lower():
            self.close()
        self._busy = False
        status = int(head[9:12])
        self._answered(self, status, "" if status in (200, 429) else _said(status, body))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._busy:
            self._give_up("a connection that ended before the answer")
        self._lost(self)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abandon(self) -> None:
        """Close the connection without waiting for an answer."""
        self._busy = False
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, why: str) -> None:
        self._busy = False
        self.close()
        self._answered(self, 0, why)


def _length_of(head: bytes) -> int | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return None


def _said(status: int, body: bytes) -> str:
    """The status with the `detail` of the problem, if it has one."""
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        return f"status {status}"
    return f"status {status}: {str(detail)[:200]}"


_CONNECT_S = 5.0
_LAST_ANSWERS_S = 5.0
_AGAIN_S = 0.05
_CLOSE_S = 1.0
# The precision of a sleep.
_GRAIN_S = 0.002


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """An address, and the requests to send there in turn."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    requests: list[bytes]


@dataclass(frozen=True, slots=True)
class Pace:
    """The duration, the connections, and the requests a second; None for as many as possible."""

    seconds: float
    connections: int
    rate: float | None


class Display(Protocol):
    """Shows progress every `every_s` seconds."""

    every_s: float

    def show(self, report: LoadReport) -> None: ...

    def end(self) -> None: ...


def put_under_load(target: LoadTarget, pace: Pace, display: Display) -> LoadReport:
    """Run to the end or until interrupted. Returns the report."""
    load = _Load(target, pace, display)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(load.run())
    return uvloop.run(load.run())


class _Load:
    """One run."""

    def __init__(self, target: LoadTarget, pace: Pace, display: Display) -> None:
        self._target = target
        self._pace = pace
        self._display = display
        self._report = LoadReport()
        self._requests = cycle(target.requests)
        self._clients: set[Client] = set()
        self._free: deque[Client] = deque()
        self._under_way = 0
        self._sent = 0
        self._over = asyncio.Event()
        self._answers = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> LoadReport:
        loop = asyncio.get_running_loop()
        await self._connect_all()
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGINT, self._over.set)
        began = time.perf_counter()
        self._start(self._show(began))
        if self._pace.rate is None:
            while self._free:
                self._ask(self._free.popleft(), time.perf_counter())
        else:
            self._start(self._keep_pace(began, self._pace.rate))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._over.wait(), self._pace.seconds)
        self._over.set()
        await self._last_answers()
        self._report.seconds = time.perf_counter() - began
        await self._close()
        self._display.end()
        return self._report

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_all(self) -> None:
        wanted = range(self._pace.connections)
        try:
            made = await asyncio.gather(*(self._connect() for _ in wanted))
        except (OSError, asyncio.TimeoutError) as error:
            reason = str(error) or f"no answer in {_CONNECT_S:g} s"
            raise ConnectionError(f"cannot connect to {self._target.url}: {reason}") from error
        # One that the service has already closed, perhaps for its certificate, is reconnected.
        self._free.extend(client for client in made if client.is_open)

    async def _connect(self) -> Client:
        target = self._target
        connecting = asyncio.get_running_loop().create_connection(
            lambda: Client(self._answered, self._lost), target.host, target.port, ssl=target.tls
        )
        _, client = await asyncio.wait_for(connecting, _CONNECT_S)
        self._clients.add(client)
        return client

    async def _connect_again(self) -> None:
        while not self._over.is_set():
            try:
                client = await self._connect()
            except (OSError, asyncio.TimeoutError) as error:  # noqa: PERF203 - that is the point
                self._report.failed(f"cannot connect: {str(error) or 'no answer'}")
                await asyncio.sleep(_AGAIN_S)
            else:
                if client.is_open:
                    self._is_free(client)
                return

    def _ask(self, client: Client, since: float) -> None:
        self._under_way += 1
        self._sent += 1
        client.ask(next(self._requests), since)

    def _answered(self, client: Client, status: int, why: str) -> None:
        self._under_way -= 1
        if why:
            self._report.failed(why)
        else:
            self._report.decided(status == 200, time.perf_counter() - client.since)
        if self._over.is_set():
            self._answers.set()
        elif client.is_open:
            self._is_free(client)

    def _is_free(self, client: Client) -> None:
        if self._pace.rate is None and not self._over.is_set():
            self._ask(client, time.perf_counter())
        else:
            self._free.append(client)

    def _lost(self, client: Client) -> None:
        self._clients.discard(client)
        with contextlib.suppress(ValueError):
            self._free.remove(client)
        if not self._over.is_set():
            self._start(self._connect_again())

    async def _keep_pace(self, began: float, rate: float) -> None:
        starved = False
        while not self._over.is_set():
            now = time.perf_counter()
            while self._free and (due := began + self._sent / rate) <= now:
                self._ask(self._free.popleft(), due if starved else now)
            starved = not self._free
            left = began + self._sent / rate - now
            await asyncio.sleep(left - _GRAIN_S if left > 2 * _GRAIN_S else 0)

    async def _show(self, began: float) -> None:
        while True:
            await asyncio.sleep(self._display.every_s)
            self._report.seconds = time.perf_counter() - began
            self._display.show(self._report)

    async def _last_answers(self) -> None:
        end = time.perf_counter() + _LAST_ANSWERS_S
        while self._under_way and (left := end - time.perf_counter()) > 0:
            self._answers.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._answers.wait(), left)
        for _ in range(self._under_way):
            self._report.failed(f"no answer within {_LAST_ANSWERS_S:g} s of the end")

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in list(self._clients):
            client.abandon()
        end = time.perf_counter() + _CLOSE_S
        while self._clients and time.perf_counter() < end:
            await asyncio.sleep(_GRAIN_S)


_STEP = math.log(1.01)
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class LoadReport:
    """The results, filled in during the run."""

    def __init__(self) -> None:
        self.seconds: float = 0.0
        self.allowed: int = 0
        self.denied: int = 0
        self.troubles: Counter[str] = Counter()
        self._buckets: Counter[int] = Counter()
        self._longest_s = 0.0

    @property
    def answered(self) -> int:
        """Requests that got a decision."""
        return self.allowed + self.denied

    @property
    def rate(self) -> float:
        return self.answered / self.seconds if self.seconds else 0.0

    def decided(self, allowed: bool, latency_s: float) -> None:
        """Count a request that got a decision."""
        if allowed:
            self.allowed += 1
        else:
            self.denied += 1
        self._buckets[int(math.log(max(latency_s, 1e-6) * 1e6) / _STEP)] += 1
        self._longest_s = max(self._longest_s, latency_s)

    def failed(self, why: str) -> None:
        """Count a request that got none."""
        self.troubles[why] += 1

    def quantile_s(self, share: float) -> float:
        """The latency that `share` of the requests did not exceed."""
        wanted, seen = share * self.answered, 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(math.exp((bucket + 0.5) * _STEP) / 1e6, self._longest_s)
        return self._longest_s

    def line(self) -> str:
        """One line, for progress."""
        p50, p99 = _shown(self.quantile_s(0.5)), _shown(self.quantile_s(0.99))
        return (
            f"{self.seconds:5.1f} s {self.rate:9,.0f}/s  allowed {self.allowed:,}  denied "
            f"{self.denied:,}  failed {self.troubles.total():,}  p50 {p50}  p99 {p99}"
        )

    def table(self, title: str) -> str:
        """The whole report as text."""
        latencies = {name: self.quantile_s(share) for name, share in _SHARES.items()}
        latencies["max"] = self._longest_s
        rows = [
            f"{self.seconds:.1f} s, {title}",
            "",
            f"  answered {self.answered:14,}{self.rate:14,.0f}/s",
            f"  allowed  {self.allowed:14,}",
            f"  denied   {self.denied:14,}",
            f"  failed   {self.troubles.total():14,}",
            *(f"    {count:,} x {why}" for why, count in self.troubles.most_common(5)),
            "",
            "  latency" + "".join(f"{name:>10}" for name in latencies),
            "         " + "".join(f"{_shown(seconds):>10}" for seconds in latencies.values()),
        ]
        return "\n".join(rows)

    def as_dict(self) -> dict[str, Any]:
        """The whole report as data."""
        return {
            "seconds": round(self.seconds, 3),
            "answered": self.answered,
            "rate_per_s": round(self.rate, 1),
            "allowed": self.allowed,
            "denied": self.denied,
            "failed": dict(self.troubles),
            "latency_ms": {
                **{name: round(self.quantile_s(share) * 1e3, 3) for name, share in _SHARES.items()},
                "max": round(self._longest_s * 1e3, 3),
            },
        }


def _shown(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
