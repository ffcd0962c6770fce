"""Attacks on a real server: it stays within its memory, and the other clients are served."""

from __future__ import annotations

import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import NotReady, eventually

from .frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    PING,
    begin,
    block,
    call,
    frame,
    frames,
    request,
    reset,
    settings,
    window,
)
from .serving import Server, serve

MOST_BYTES = 12_000_000
"""What a whole attack may make the process take, its own copies included."""

Attack = Callable[[int], bytes]


def _pings(_: int) -> bytes:
    return frame(PING, 0, 0, b"12345678") * 500


def _settings(_: int) -> bytes:
    return settings((INITIAL_WINDOW, 1_000), (INITIAL_WINDOW, 2_000)) * 200


def _resets(turn: int) -> bytes:
    numbers = range(turn * 400 + 1, turn * 400 + 401, 2)
    return b"".join(call(number) + reset(number) for number in numbers)


def _made_resets(turn: int) -> bytes:
    numbers = range(turn * 400 + 1, turn * 400 + 401, 2)
    return b"".join(request(number) + window(number, 0) for number in numbers)


def _continuations(turn: int) -> bytes:
    start = frame(HEADERS, 0, 1, block()) if turn == 0 else b""
    return start + frame(CONTINUATION, 0, 1) * 500


def _empty_data(turn: int) -> bytes:
    return (request(1) if turn == 0 else b"") + frame(DATA, 0, 1) * 500


def _giant_fields(turn: int) -> bytes:
    big = b"\x40\x01a\x7f\x91\x1e" + b"b" * 3_984
    data = frame(HEADERS, END_HEADERS, 1, block() + big) if turn == 0 else b""
    many = block() + b"\xbe" * 500
    first = turn * 40 + 3
    return data + b"".join(frame(HEADERS, 5, n, many) for n in range(first, first + 40, 2))


def _small_windows(turn: int) -> bytes:
    """Large answers, and room for them byte by byte."""
    if turn == 0:
        asked = (request(n, method="GET", path="/bytes/100000", end=True) for n in range(1, 401, 2))
        return settings((INITIAL_WINDOW, 0)) + b"".join(asked)
    return b"".join(window(number, 1) for number in range(1, 401, 2))


def _unfinished_bodies(turn: int) -> bytes:
    first = turn * 100 + 1
    numbers = range(first, first + 100, 2)
    return b"".join(request(n) + frame(DATA, 0, n, b"x" * 16_000) for n in numbers)


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
        self.join(10)
        self.socket.close()


def ask(port: int) -> bytes:
    """One call on a connection of its own: the message of the answer."""
    with socket.create_connection(("127.0.0.1", port), 10) as line:
        line.sendall(begin() + call(1, b"hello"))
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


def waiting(server: Server) -> int:
    """Bytes that the server keeps for all who do not read."""

    def count() -> int:
        return sum(
            one.http2.outgoing + one.transport.get_write_buffer_size()
            for one in server.connections
            if one.http2 is not None
        )

    found: int = server.run(count)
    return found


def _require_quiet(server: Server) -> None:
    if server.connections:
        raise NotReady


@pytest.mark.parametrize("reads", [True, False], ids=["reading", "deaf"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_survived_and_others_are_served(
    protocol: Any, attack: str, reads: bool
) -> None:
    """Two attackers at a time, and a new client that asks again and again beside them."""
    with serve(protocol, control_burst=300, reset_burst=100) as server:
        assert ask(server.port) == b"hello"
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        attackers = [Attacker(server.port, ATTACKS[attack], reads) for _ in range(2)]
        for attacker in attackers:
            attacker.start()
        try:
            deadline = time.monotonic() + 0.4
            while time.monotonic() < deadline:
                assert ask(server.port) == b"hello"
                assert waiting(server) < 3_000_000
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
            for attacker in attackers:
                attacker.stop()
        assert peak < MOST_BYTES, peak
        assert ask(server.port) == b"hello"
        eventually(lambda: _require_quiet(server), within=10, what="all connections end")


@pytest.mark.parametrize("attack", ["pings", "settings", "resets", "fields without an end"])
def test_a_flood_ends_with_a_word_of_why(protocol: Any, attack: str) -> None:
    """A client that reads is told to calm down."""
    with serve(protocol, control_burst=300, reset_burst=100) as server:
        attacker = Attacker(server.port, ATTACKS[attack], True)
        attacker.start()
        attacker.join(20)
        attacker.stop()
        calm = struct.pack(">I", 11)
        assert GOAWAY in attacker.received
        assert calm in attacker.received
