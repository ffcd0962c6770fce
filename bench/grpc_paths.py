"""What a Check over gRPC costs: `python -m bench.grpc_paths`.

Three servers, each in a process of its own, are asked in turn and in many short rounds, so that a
busy machine slows all of them: ours with a Check; grpcio's asyncio server with an echo of an empty
message, as the usual generated code would serve it; and a floor, which knows how long a call is and
answers with bytes that were made beforehand, so that nothing is left but the event loop and the
system. The load comes from this process over plain sockets: requests are encoded once and answers
only counted, since a client of a library would cost as much as a server and hide the difference.

`ratio` is Check's rate over the echo's, `cpu_ratio` the same of the processor time that the servers
used, and `floor_cpu_ratio` of the floor's over Check's; medians over rounds. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, cast

import grpc
from google.protobuf.empty_pb2 import Empty

from penstock import gcra
from penstock.config import PolicyFile, PolicySpec
from penstock.service import build_service
from penstock.service._running import run_loop
from penstock.service.grpc import open_grpc
from penstock.wire.proto import rate_limiter_pb2 as pb

TARGET = 10.0
ROUNDS = 15
ROUND_SECONDS = 0.6
CONNECTIONS = 4
STREAMS = 16
CHECK = "/throttlekit.v1.RateLimiter/Check"
ECHO = "/bench.Echo/Echo"
FLOOR = "/bench.Floor/Floor"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def _field(name: bytes, value: bytes) -> bytes:
    """A header as literals that no table remembers."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def _head(path: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(_field(name.encode(), value.encode()) for name, value in fields.items())


@dataclass
class Load:
    """One connection that keeps a number of calls in flight."""

    port: int
    path: str
    body: bytes
    done: int = 0
    buffer: bytearray = field(default_factory=bytearray)
    stream: int = 1

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.head = _head(self.path)
        self.message = b"\0" + struct.pack(">I", len(self.body)) + self.body
        windows = struct.pack(">HI", 4, 2**31 - 1)
        widen = _frame(_WINDOW, 0, 0, struct.pack(">I", 2**30))
        self.socket.sendall(PREFACE + _frame(_SETTINGS, 0, 0, windows) + widen)
        self.send(STREAMS)

    def send(self, calls: int) -> None:
        out = bytearray()
        for _ in range(calls):
            out += _frame(_HEADERS, _END_HEADERS, self.stream, self.head)
            out += _frame(_DATA, _END_STREAM, self.stream, self.message)
            self.stream += 2
        self.socket.sendall(out)

    def receive(self, more: bool) -> None:
        """Count what was answered and, if there is to be more, ask as often again."""
        self.buffer += self.socket.recv(1 << 18)
        ended = 0
        while len(self.buffer) >= 9:
            size = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + size:
                break
            ended += self._take(self.buffer[3], self.buffer[4], bytes(self.buffer[9 : 9 + size]))
            del self.buffer[: 9 + size]
        self.done += ended
        if more and ended:
            self.send(ended)

    def _take(self, kind: int, flags: int, payload: bytes) -> bool:
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            self.socket.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        if kind in (_RESET, _GOAWAY):
            raise RuntimeError(f"the server ended it: frame {kind}, {payload!r}")
        return kind == _HEADERS and bool(flags & _END_STREAM)

    @property
    def in_flight(self) -> int:
        return (self.stream - 1) // 2 - self.done


def calls_per_second(port: int, path: str, body: bytes, seconds: float) -> tuple[float, int]:
    """The rate over `seconds`, and how many calls were made in all."""
    loads = [Load(port, path, body) for _ in range(CONNECTIONS)]
    with selectors.DefaultSelector() as selector:
        for load in loads:
            selector.register(load.socket, selectors.EVENT_READ, load)
        began = time.perf_counter()
        _pump(selector, lambda: time.perf_counter() - began < seconds)
        counted = sum(load.done for load in loads)
        elapsed = time.perf_counter() - began
        while any(load.in_flight for load in loads):
            _pump(selector, lambda: False)
    for load in loads:
        load.socket.close()
    return counted / elapsed, sum(load.done for load in loads)


def _pump(selector: selectors.BaseSelector, more: Callable[[], bool]) -> None:
    while True:
        going = more()
        for key, _ in selector.select():
            key.data.receive(going)
        if not going:
            return


class Served:
    """A server in a process of its own, that tells its port and the processor time it has used."""

    def __init__(self, pipe: Connection, process: Any) -> None:
        self._pipe = pipe
        self._process = process
        self.port: int = pipe.recv()

    def cpu_seconds(self) -> float:
        self._pipe.send("cpu")
        used: float = self._pipe.recv()
        return used

    def round(self, path: str, body: bytes, seconds: float) -> tuple[float, float]:
        """Calls per second, and processor microseconds per call."""
        before = self.cpu_seconds()
        rate, calls = calls_per_second(self.port, path, body, seconds)
        return rate, (self.cpu_seconds() - before) / calls * 1e6

    def close(self) -> None:
        self._pipe.send("end")
        self._process.join()


@contextmanager
def served(main: Callable[[Connection], None]) -> Iterator[Served]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs,), daemon=True)
    process.start()
    # So that a server that ends too early ends the pipe as well.
    theirs.close()
    server = Served(ours, process)
    try:
        yield server
    finally:
        server.close()


async def _report(pipe: Connection, port: int) -> None:
    """Answer the other process until it says that this is the end."""
    asked: asyncio.Queue[str] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: asked.put_nowait(pipe.recv()))
    pipe.send(port)
    while await asked.get() != "end":
        times = os.times()
        pipe.send(times.user + times.system)


def serve_check(pipe: Connection) -> None:
    async def main() -> int:
        plenty = PolicySpec("plenty", gcra(10_000, 1_000, burst=100_000_000))
        service = build_service(PolicyFile({"plenty": plenty}))
        await service.start()
        server = await open_grpc(service, port=0)
        await _report(pipe, server.port)
        await server.drain(1)
        await service.aclose()
        return 0

    run_loop(main)


async def _echo(request: Empty, context: object) -> Empty:
    return request


def serve_echo(pipe: Connection) -> None:
    async def main() -> None:
        method = grpc.unary_unary_rpc_method_handler(
            _echo, Empty.FromString, Empty.SerializeToString
        )
        server = grpc.aio.server()
        handler = grpc.method_handlers_generic_handler("bench.Echo", {"Echo": method})
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await _report(pipe, port)
        await server.stop(1)

    asyncio.run(main())


class Floor(asyncio.Protocol):
    """Answers as many calls as so many bytes must be."""

    def __init__(self, call_bytes: int) -> None:
        self._call_bytes = call_bytes
        # What a client begins with: the preface, one setting, one window.
        self._left = -(len(PREFACE) + 15 + 13)
        self._stream = 1
        message = b"\0\0\0\0\x10" + b"m" * 16
        self._parts = (
            struct.pack(">I", 4)[1:] + bytes((_HEADERS, _END_HEADERS)),
            b"\x88\xbe\xbf\xc0" + struct.pack(">I", len(message))[1:] + bytes((_DATA, 0)),
            message + struct.pack(">I", 1)[1:] + bytes((_HEADERS, _END_HEADERS | _END_STREAM)),
            b"\xbe",
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._left += len(data)
        calls, self._left = divmod(self._left, self._call_bytes)
        out = []
        for _ in range(calls):
            out.append(struct.pack(">I", self._stream).join(self._parts))
            self._stream += 2
        if out:
            self._transport.write(b"".join(out))


def serve_floor(pipe: Connection) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        call_bytes = 9 + len(_head(FLOOR)) + 9 + 5 + len(BODY)
        server = await loop.create_server(lambda: Floor(call_bytes), "127.0.0.1", 0)
        await _report(pipe, server.sockets[0].getsockname()[1])
        server.close()
        return 0

    run_loop(main)


BODY = pb.CheckRequest(policy="plenty", key="user:1234567", cost=1).SerializeToString()


def measure(rounds: int = ROUNDS, seconds: float = ROUND_SECONDS) -> dict[str, float]:
    samples = []
    with served(serve_echo) as echo, served(serve_check) as check, served(serve_floor) as floor:
        turns = [(echo, ECHO, b""), (check, CHECK, BODY), (floor, FLOOR, BODY)]
        for number in range(rounds + 1):
            answers = {}
            for server, path, payload in turns if number % 2 else turns[::-1]:
                answers[path] = server.round(path, payload, seconds)
            samples.append((*answers[ECHO], *answers[CHECK], *answers[FLOOR]))
    # The first round warms all of them up.
    echo_rate, echo_cpu, rate, cpu, floor_rate, floor_cpu = zip(*samples[1:], strict=True)
    return {
        "echo_per_second": statistics.median(echo_rate),
        "check_per_second": statistics.median(rate),
        "floor_per_second": statistics.median(floor_rate),
        "echo_cpu_us": statistics.median(echo_cpu),
        "check_cpu_us": statistics.median(cpu),
        "floor_cpu_us": statistics.median(floor_cpu),
        "ratio": _median_ratio(rate, echo_rate),
        "cpu_ratio": _median_ratio(echo_cpu, cpu),
        "floor_cpu_ratio": _median_ratio(floor_cpu, cpu),
        "target": TARGET,
    }


def _median_ratio(over: tuple[float, ...], under: tuple[float, ...]) -> float:
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def main() -> int:
    results = measure()
    for name in ("echo", "check", "floor"):
        rate, cpu = results[f"{name}_per_second"], results[f"{name}_cpu_us"]
        print(f"{name:6} {rate:8.0f}/s  {cpu:6.1f} us of CPU")
    print(f"ratio {results['ratio']:.1f}, by CPU {results['cpu_ratio']:.1f}; target {TARGET}")
    print(f"of the processor time of a Check, the floor's is {results['floor_cpu_ratio']:.2f}")
    print(json.dumps({name: round(value, 4) for name, value in results.items()}))
    return 0 if results["cpu_ratio"] >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
