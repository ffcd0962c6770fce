"""Attacks on a real server: it stays within its memory, and the other clients are served."""

from __future__ import annotations

import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import gcra
from penstock.config import PolicyFile, PolicySpec
from penstock.service import build_service
from penstock.service.grpc import open_grpc
from penstock.wire.proto import rate_limiter_pb2 as pb
from tests.servers import NotReady, eventually
from tests.support.loops import LoopThread

from .frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    PING,
    begin,
    block,
    frame,
    frames,
    request,
    reset,
    settings,
    window,
)

CHECK = "/throttlekit.v1.RateLimiter/Check"
ASKED = pb.CheckRequest(policy="plenty", key="k").SerializeToString()
MOST_BYTES = 12_000_000
"""What a whole attack may make the process take, its own copies included."""

Attack = Callable[[int], bytes]


def head(number: int) -> bytes:
    return request(number, path=CHECK)


def call(number: int) -> bytes:
    """A whole Check."""
    return head(number) + frame(
        DATA, END_STREAM, number, b"\0" + struct.pack(">I", len(ASKED)) + ASKED
    )


def _pings(_: int) -> bytes:
    return frame(PING, 0, 0, b"12345678") * 500


def _settings(_: int) -> bytes:
    return settings((INITIAL_WINDOW, 1_000), (INITIAL_WINDOW, 2_000)) * 200


def _resets(turn: int) -> bytes:
    numbers = range(turn * 400 + 1, turn * 400 + 401, 2)
    return b"".join(call(number) + reset(number) for number in numbers)


def _made_resets(turn: int) -> bytes:
    numbers = range(turn * 400 + 1, turn * 400 + 401, 2)
    return b"".join(head(number) + window(number, 0) for number in numbers)


def _continuations(turn: int) -> bytes:
    start = frame(HEADERS, 0, 1, block(path=CHECK)) if turn == 0 else b""
    return start + frame(CONTINUATION, 0, 1) * 500


def _empty_data(turn: int) -> bytes:
    return (head(1) if turn == 0 else b"") + frame(DATA, 0, 1) * 500


def _giant_fields(turn: int) -> bytes:
    big = b"\x40\x01a\x7f\x91\x1e" + b"b" * 3_984
    data = frame(HEADERS, END_HEADERS, 1, block(path=CHECK) + big) if turn == 0 else b""
    many = block(path=CHECK) + b"\xbe" * 500
    first = turn * 40 + 3
    return data + b"".join(frame(HEADERS, 5, n, many) for n in range(first, first + 40, 2))


def _small_windows(turn: int) -> bytes:
    """Room for answers byte by byte."""
    if turn == 0:
        return settings((INITIAL_WINDOW, 0)) + b"".join(call(n) for n in range(1, 201, 2))
    return b"".join(window(number, 1) for number in range(1, 201, 2))


def _unfinished_bodies(turn: int) -> bytes:
    first = turn * 100 + 1
    numbers = range(first, first + 100, 2)
    return b"".join(head(n) + frame(DATA, 0, n, b"x" * 16_000) for n in numbers)


ATTACKS: dict[str, Attack] = {
    "pings": _pings,
    "settings": _settings,
    "resets": _resets,
    "resets that we have to send": _made_resets,
    "fields without an end": _continuations,
    "empty data": _empty_data,
    "giant fields": _giant_fields,
    "windows of a byte": _small_windows,
    "bodies without an end": _unfinished_bodies,
}


class Attacker(threading.Thread):
    """Sends as fast as it can until it is cut off or told to stop, and reads or does not."""

    def __init__(self, port: int, attack: Attack, reads: bool) -> None:
        super().__init__(daemon=True)
        self.attack = attack
        self.reads = reads
        self.stopped = threading.Event()
        self.sent = 0
        self.received = bytearray()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(0.02)

    def run(self) -> None:
        try:
            self._send(begin())
            for turn in range(10_000):
                if self.stopped.is_set():
                    break
                self._send(self.attack(turn))
        except OSError:
            pass
        if self.reads:
            self._read_rest()

    def _send(self, data: bytes) -> None:
        while data and not self.stopped.is_set():
            try:
                sent = self.socket.send(data)
                self.sent += sent
                data = data[sent:]
            except TimeoutError:
                pass
            if self.reads:
                self._read()

    def _read(self) -> None:
        self.socket.settimeout(0.0005)
        try:
            while part := self.socket.recv(65_536):
                self.received += part
        except TimeoutError:
            pass
        finally:
            self.socket.settimeout(0.02)

    def _read_rest(self) -> None:
        try:
            while not self.stopped.is_set():
                try:
                    part = self.socket.recv(65_536)
                except TimeoutError:
                    continue
                if not part:
                    return
                self.received += part
        except OSError:
            pass

    def stop(self) -> None:
        self.stopped.set()
        self.join(60)
        self.socket.close()


def ask(port: int) -> bytes:
    """One call on a connection of its own: the message of the answer."""
    with socket.create_connection(("127.0.0.1", port), 60) as line:
        line.sendall(begin() + call(1))
        data = b""
        while True:
            part = line.recv(65_536)
            assert part, "the server hung up on a client that did nothing wrong"
            data += part
            whole = 0
            while len(data) >= whole + 9:
                size = int.from_bytes(data[whole : whole + 3], "big")
                if len(data) < whole + 9 + size:
                    break
                whole += 9 + size
            answers = [payload for kind, _, _, payload in frames(data[:whole]) if kind == DATA]
            if answers:
                return answers[0][5:]


class Served(LoopThread):
    """The gRPC server of a service in memory, in a thread of its own."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        plenty = PolicySpec("plenty", gcra(1_000, 1_000, burst=1_000_000))
        self.service = build_service(PolicyFile({"plenty": plenty}))
        await self.service.start()
        self.server = await open_grpc(self.service, port=0)
        self.port = self.server.port
        yield
        await self.server.drain(0)
        await self.service.aclose()

    def clients(self) -> list[Any]:
        return [*self.server.known.connections, *self.server.strangers.connections]

    async def unsent(self) -> int:
        """Bytes that are kept for all who do not read."""
        return sum(
            client.http2.outgoing + client._transport.get_write_buffer_size()
            for client in self.clients()
        )


def _require_quiet(served: Served) -> None:
    if served.clients():
        raise NotReady


@pytest.mark.parametrize("reads", [True, False], ids=["reading", "deaf"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_survived_and_others_are_served(attack: str, reads: bool) -> None:
    """Two attackers at a time, and a new client that asks again and again beside them."""
    with Served() as served:
        assert allowed(ask(served.port))
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        attackers = [Attacker(served.port, ATTACKS[attack], reads) for _ in range(2)]
        for attacker in attackers:
            attacker.start()
        try:
            deadline = time.monotonic() + 0.3
            while time.monotonic() < deadline:
                assert allowed(ask(served.port))
                assert served.run(served.unsent()) < 3_000_000
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
            for attacker in attackers:
                attacker.stop()
        assert peak < MOST_BYTES, peak
        assert allowed(ask(served.port))
        eventually(lambda: _require_quiet(served), within=60, what="all connections end")


def allowed(message: bytes) -> bool:
    return pb.CheckResponse.FromString(message).decision.allowed


@pytest.mark.parametrize("attack", ["pings", "settings", "resets", "fields without an end"])
def test_a_flood_ends_with_a_word_of_why(attack: str) -> None:
    """A client that reads is told to calm down."""
    with Served() as served:
        attacker = Attacker(served.port, ATTACKS[attack], True)
        attacker.start()
        attacker.join(60)
        attacker.stop()
        calm = struct.pack(">I", 11)
        assert GOAWAY in attacker.received
        assert calm in attacker.received
