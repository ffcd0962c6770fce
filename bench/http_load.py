"""A load generator small enough not to be what is measured: one thread, one epoll, raw sockets.

Closed: every connection asks again as soon as it is answered, which finds the peak. Paced: requests
are due at fixed instants and are timed from when they were due, so that a server that stalls is
charged for everyone who had to wait.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Load", "closed", "paced", "request"]


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


def closed(port: int, payload: bytes, *, connections: int, seconds: float) -> Load:
    """As fast as it goes."""
    clients = _Clients(port, connections)
    for client in clients.by_file.values():
        client.send(payload)
    began = time.perf_counter()
    end, answered = began + seconds, 0
    while (now := time.perf_counter()) < end:
        for file in clients.answered(1.0):
            answered += 1
            clients.by_file[file].send(payload)
    clients.close()
    return Load(now - began, answered)


def paced(port: int, payload: bytes, *, connections: int, seconds: float, rate: float) -> Load:
    """`rate` requests per second, evenly."""
    clients = _Clients(port, connections)
    free, due_of = deque(clients.by_file), {}
    latencies: list[float] = []
    began = time.perf_counter()
    sent, total = 0, int(rate * seconds)
    while len(latencies) < total:
        now = time.perf_counter()
        while free and sent < total and (due := began + sent / rate) <= now:
            file = free.popleft()
            due_of[file] = due
            clients.by_file[file].send(payload)
            sent += 1
        wait_s = max(0.0, began + sent / rate - time.perf_counter()) if sent < total else 1.0
        for file in clients.answered(min(wait_s, 0.001) if free else 1.0):
            latencies.append(time.perf_counter() - due_of[file])
            free.append(file)
    clients.close()
    return Load(time.perf_counter() - began, len(latencies), sorted(latencies))
