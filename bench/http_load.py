"""A load generator small enough not to be what is measured: one thread, one epoll, raw sockets.

Closed: every connection asks again as soon as it is answered, which finds the peak. Paced: requests
are due at fixed instants. A server that stalls until no connection is free is charged for everyone
who had to wait for one, from the instant at which they were due; what the generator itself sends
late is timed from when it was sent.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle

__all__ = ["Load", "closed", "paced", "request", "traced"]


@dataclass
class Load:
    """What came back. `latencies_s` are sorted."""

    seconds: float
    answered: int
    latencies_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.answered / self.seconds

    def quantile_s(self, share: float) -> float:
        last = len(self.latencies_s) - 1
        return self.latencies_s[min(last, int(share * len(self.latencies_s)))]


def request(body: bytes, path: str = "/check") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def traced(payload: bytes, number: int) -> bytes:
    """The same request with the headers that tell one from another."""
    first, _, rest = payload.partition(b"\r\n")
    trace = b"traceparent: 00-%032x-%016x-01\r\nx-request-id: %032x" % (number, number, number)
    return b"%b\r\n%b\r\n%b" % (first, trace, rest)


class _Clients:
    """Connections, and the replies that are not complete yet."""

    def __init__(self, port: int, count: int) -> None:
        self._poll = select.epoll()
        self._partial: dict[int, bytes] = {}
        self.by_file: dict[int, socket.socket] = {}
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setblocking(False)
            self.by_file[client.fileno()] = client
            self._poll.register(client.fileno(), select.EPOLLIN)

    def answered(self, timeout_s: float) -> list[int]:
        """The connections whose reply is complete: its body is one flat JSON object."""
        done, partial = [], self._partial
        for file, _event in self._poll.poll(timeout_s):
            data = self.by_file[file].recv(65_536)
            if partial:
                data = partial.pop(file, b"") + data
            if data[:12] != b"HTTP/1.1 200":
                raise RuntimeError(f"an answer that was not expected: {data[:300]!r}")
            if data[-1:] == b"}":
                done.append(file)
            else:
                partial[file] = data
        return done

    def close(self) -> None:
        for client in self.by_file.values():
            client.close()
        self._poll.close()


def closed(port: int, payloads: Sequence[bytes], *, connections: int, seconds: float) -> Load:
    """As fast as it goes, one payload after the other."""
    clients, following = _Clients(port, connections), cycle(payloads)
    for client in clients.by_file.values():
        client.send(next(following))
    began = time.perf_counter()
    end, answered = began + seconds, 0
    while (now := time.perf_counter()) < end:
        for file in clients.answered(1.0):
            answered += 1
            clients.by_file[file].send(next(following))
    clients.close()
    return Load(now - began, answered)


def paced(port: int, payload: bytes, *, connections: int, seconds: float, rate: float) -> Load:
    """`rate` requests per second, evenly."""
    clients = _Clients(port, connections)
    free, since_of = deque(clients.by_file), {}
    latencies: list[float] = []
    sent, total, starved = 0, int(rate * seconds), False
    with _no_collector():
        began = time.perf_counter()
        while len(latencies) < total:
            now = time.perf_counter()
            while free and sent < total and (due := began + sent / rate) <= now:
                file = free.popleft()
                since_of[file] = due if starved else now
                clients.by_file[file].send(payload)
                sent += 1
            starved = not free
            # Never asleep while a request is to come: epoll counts in whole milliseconds, and would
            # make the requests of one of them late, which is not the server's doing.
            for file in clients.answered(0 if free and sent < total else 1.0):
                latencies.append(time.perf_counter() - since_of[file])
                free.append(file)
    clients.close()
    return Load(time.perf_counter() - began, len(latencies), sorted(latencies))


@contextmanager
def _no_collector() -> Iterator[None]:
    """A pause of the generator's would be timed as the server's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
