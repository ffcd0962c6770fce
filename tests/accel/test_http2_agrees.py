"""The compiled HTTP/2 and the interpreted one do the same with the same bytes.

Random conversations, right and wrong, are cut at random and fed to both side by side, with the same
answers in between. Events, their fields, what goes out and what is left must match, always.
"""

from __future__ import annotations

import gc
import itertools
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from penstock.service.grpc import _protocol as grpc_calls
from penstock.service.http2 import _connection, _hpack, _streams
from tests.accel.blocks import NAMES, VALUES, mutated, random_block

compiled: Any = pytest.importorskip("penstock.accel._http2")

ROUTES = {
    b"/a.B/Unary": _streams.KnownPath(1, 300),
    b"/a.B/Stream": _streams.KnownPath(2, 300, streaming=True),
    b"/a.B/Batch": _streams.KnownPath(3, 200_000),
}


def describe(stream: Any) -> Any:
    """All that a server can see of a stream."""
    if stream is None:
        return None
    return (
        *(stream.id, stream.method, stream.scheme, stream.path, stream.query, stream.authority),
        *(stream.route, stream.streaming, stream.ended, stream.closed, stream.fault, stream.body),
        *(stream.head_sent, stream.begun_ms, tuple(stream.fields), dict(stream.headers)),
    )


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes((kind, flags))
    return head + struct.pack(">I", stream_id) + payload


class Client:
    """Writes frames; how many of them are wrong is drawn per conversation."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.encoder = _hpack.Encoder()
        self.next_id = 1
        self.noise = rng.choice([0, 0, 0.01, 0.03, 0.3])

    def odd(self, chance: float = 1) -> bool:
        return self.rng.random() < self.noise * chance

    def some_stream(self) -> int:
        rng = self.rng
        if self.next_id == 1 or self.odd():
            return rng.choice([0, 2, self.next_id, self.next_id + 10])
        return max(1, self.next_id - 2 * rng.randrange(1, 5))

    def head(self) -> _hpack.HeaderBlock:
        rng = self.rng
        path = rng.choice([*ROUTES, b"/", b"/other?q=1", b"/a.B/Unary"])
        repeated = [
            (b":method", rng.choice([b"POST", b"POST", b"GET"])),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"localhost:1"),
            (b"content-type", rng.choice([b"application/grpc", b"application/grpc+proto"])),
            (b"te", b"trailers"),
        ]
        others: list[tuple[bytes, bytes]] = []
        if rng.random() < 0.1:
            others.append((b"content-length", b"%d" % rng.choice([0, 5, 20, 400])))
        if rng.random() < 0.3:
            timeouts = [b"1S", b"20m", b"1n", b"1500u", b"9H", b"9M"]
            others.append((b"grpc-timeout", rng.choice(timeouts)))
        while rng.random() < 0.3:
            others.append((rng.choice(NAMES[-6:]), b"z" * rng.choice([1, 30, 200])))
        if self.odd(3):
            others.append((rng.choice(NAMES), rng.choice(VALUES)))
        if self.odd():
            rng.shuffle(repeated)
            del repeated[rng.randrange(len(repeated))]
        if self.odd():
            repeated, others = others, repeated
        return _hpack.HeaderBlock(repeated, others)

    def request(self) -> bytes:
        rng = self.rng
        stream_id = self.some_stream() if self.odd() else self.next_id
        self.next_id = max(self.next_id, stream_id + 2)
        data = random_block(rng) if self.odd() else self.encoder.encode(self.head())
        flags = rng.choice([0, 0, 1])
        if rng.random() < 0.1:
            flags |= 0x20
            depends = stream_id if self.odd() else stream_id + 2
            data = struct.pack(">IB", depends, 7) + data
        if rng.random() < 0.1:
            flags |= 0x08
            padding = rng.choice([0, 3, 200])
            data = bytes((padding,)) + data + b"\0" * padding
        if rng.random() < 0.15:
            return self.split_block(flags, stream_id, data)
        return frame(1, flags | 0x04, stream_id, data)

    def split_block(self, flags: int, stream_id: int, data: bytes) -> bytes:
        rng = self.rng
        # Padding and priority belong to the first frame.
        first = len(data) if flags & 0x28 else rng.randrange(len(data) + 1)
        out = frame(1, flags, stream_id, data[:first])
        rest = data[first:]
        for _ in range(rng.randrange(3)):
            cut = rng.randrange(len(rest) + 1)
            out += frame(9, 0, stream_id, rest[:cut])
            rest = rest[cut:]
        if self.odd():
            out += self.other()
        return out + frame(9, 0x04, stream_id, rest)

    def data(self) -> bytes:
        rng = self.rng
        bodies = [b"", b"\0\0\0\0\x03abc", b"12345", b"x" * 20, b"y" * 350, b"z" * 16_000]
        body = rng.choice(bodies)
        flags = rng.choice([0, 1])
        if rng.random() < 0.1:
            flags |= 0x08
            padding = rng.choice([0, 7, 255])
            body = bytes((padding,)) + body + b"\0" * (1 if self.odd() else padding)
        return frame(0, flags, self.some_stream(), body)

    def call(self) -> bytes:
        """A whole unary call, as it should be."""
        stream_id = self.next_id
        self.next_id += 2
        pairs = [
            *((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/Unary")),
            *((b":authority", b"a"), (b"te", b"trailers"), (b"content-type", b"application/grpc")),
        ]
        timeout = [(b"grpc-timeout", b"%dm" % self.rng.randrange(2_000))]
        head = self.encoder.encode(_hpack.HeaderBlock(pairs, timeout))
        message = b"k" * self.rng.choice([0, 5, 100])
        body = b"\0" + struct.pack(">I", len(message)) + message
        return frame(1, 0x04, stream_id, head) + frame(0, 1, stream_id, body)

    def upload(self) -> bytes:
        """A body of many frames, on a stream that is new."""
        rng = self.rng
        stream_id = self.next_id
        self.next_id += 2
        path = rng.choice([b"/a.B/Batch", b"/a.B/Stream"])
        pairs = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path)]
        out = frame(1, 0x04, stream_id, self.encoder.encode(_hpack.HeaderBlock(pairs)))
        for _ in range(rng.randrange(8)):
            out += frame(0, 0, stream_id, b"u" * rng.choice([5_000, 16_000]))
        return out + frame(0, 1, stream_id)

    def trailers(self) -> bytes:
        pairs = [(b"x", b"y")]
        if self.odd(3):
            pairs.append((self.rng.choice(NAMES), self.rng.choice(VALUES)))
        block = self.encoder.encode(_hpack.HeaderBlock((), pairs))
        return frame(1, 0x04 if self.odd() else 0x05, self.some_stream(), block)

    def other(self) -> bytes:
        rng = self.rng
        kind = rng.randrange(10)
        if kind <= 3:
            amounts = [1, 5, 100, 65_535]
            amount = rng.choice([0, 2**31 - 1, 2**31 + 4] if self.odd() else amounts)
            return frame(8, 0, rng.choice([0, self.some_stream()]), struct.pack(">I", amount))
        if kind == 4:
            return frame(3, 0, self.some_stream(), struct.pack(">I", rng.randrange(12)))
        if kind == 5:
            return self.settings()
        if kind == 6:
            payload = b"short" if self.odd() else rng.choice([b"12345678", b"shutdown"])
            return frame(6, rng.choice([0, 0, 1]), int(self.odd()), payload)
        if kind == 7:
            return frame(2, 0, self.some_stream(), struct.pack(">IB", self.next_id, 16))
        if kind == 8:
            return frame(7, 0, 0, struct.pack(">II", 0, rng.randrange(12)) + b"bye")
        unknown = rng.randrange(256) if self.odd() else rng.randrange(10, 256)
        return frame(unknown, rng.randrange(256), self.some_stream(), b"?")

    def settings(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.3:
            return frame(4, 1, 0, b"x" if self.odd() else b"")
        pairs = [
            (4, rng.choice([0, 1, 10, 100, 65_535, 100_000])),
            (1, rng.choice([0, 60, 4_096, 2**32 - 1])),
            (2, rng.choice([0, 1])),
            (3, 100),
            (5, rng.choice([16_384, 2**24 - 1])),
            (99, 5),
        ]
        if self.odd():
            pairs += [(5, 16_383), (2, 2), (4, 2**31), (4, 2**31 - 1)]
        chosen = rng.choices(pairs, k=rng.randrange(4))
        return frame(4, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in chosen))

    def conversation(self) -> bytes:
        rng = self.rng
        window = struct.pack(">HI", 4, rng.choice([0, 20, 65_535]))
        out = bytearray(_connection.PREFACE + frame(4, 0, 0, window))
        if rng.random() < 0.9:
            out += frame(4, 1, 0)
        for _ in range(rng.randrange(60)):
            chance = rng.random()
            if chance < 0.35 or self.next_id == 1:
                out += self.request()
            elif chance < 0.7:
                out += self.data()
            elif chance < 0.73:
                out += self.trailers()
            elif chance < 0.75:
                out += self.upload()
            elif chance < 0.85:
                out += self.call()
            elif not self.odd():
                out += self.other()
            else:
                out += rng.randbytes(rng.randrange(20))
        if self.odd(3):
            return mutated(bytes(out), rng)
        return bytes(out)


HEADS = [
    _hpack.HeaderBlock([(b":status", b"200"), (b"content-type", b"text/plain")]),
    _hpack.HeaderBlock([(b":status", b"404")], [(b"x", b"y" * 100)]),
    _hpack.HeaderBlock([(b":status", b"200"), (b"x", b"z" * 300)], [(b"long", b"\x01" * 40_000)]),
]
TRAILERS = _hpack.HeaderBlock([(b"grpc-status", b"0")])


class Pair:
    """Both connections, and the streams of both by number."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        small = {
            "concurrent_streams": 2,
            "header_list_bytes": 400,
            "header_fields": 10,
            "held_bytes": 100,
            "pending_bytes": 50,
            "outgoing_bytes": 200,
            "turn_requests": 1,
            "turn_bytes": 50,
            "control_burst": 5,
            "reset_burst": 2,
            "header_frames": 2,
            "header_block_bytes": 300,
        }
        bounds: dict[str, Any] = {name: n for name, n in small.items() if rng.random() < 0.12}
        bounds["stream_window"] = rng.choice([65_535, 100_000])
        bounds["connection_window"] = rng.choice([65_535, 2**20])
        room = rng.choice([0, 1_000, 2**20])
        self.now = 1_000
        self.rooms = [_streams.Room(room), compiled.Room(room)]
        self.both = [
            module.Http2Connection(module.Http2Options(routes=ROUTES, room=own, **bounds), self.now)
            for module, own in zip((_connection, compiled), self.rooms, strict=True)
        ]
        self.streams: dict[int, list[Any]] = {}
        self.check()

    def each(self, work: Callable[[Any, int], Any]) -> Any:
        plain, fast = (work(connection, side) for side, connection in enumerate(self.both))
        assert fast == plain
        return plain

    def feed(self, data: bytes) -> None:
        self.collect(lambda connection: connection.feed(data, self.now))
        while self.both[0].pending:
            before = self.both[0].outgoing
            self.collect(lambda connection: connection.feed(b"", self.now))
            if before:
                # Otherwise nothing would ever be read.
                self.each(lambda connection, _: connection.take_outgoing())

    def collect(self, work: Callable[[Any], list[Any]]) -> None:
        plain, fast = (work(connection) for connection in self.both)
        assert [(kind, describe(stream), value) for kind, stream, value in fast] == [
            (kind, describe(stream), value) for kind, stream, value in plain
        ]
        for (_, one, _), (_, other, _) in zip(plain, fast, strict=True):
            if one is not None:
                self.streams[one.id] = [one, other]
                assert compiled_call(other) == interpreted_call(one)
        self.check()
        if self.rng.random() < 0.6:
            self.answer()

    def check(self) -> None:
        self.each(
            lambda connection, _: (
                connection.outgoing,
                connection.pending,
                connection.ended,
                connection.blocked,
                connection.drained,
                connection.quiet_since_ms,
                [describe(stream) for stream in connection.streams],
            )
        )
        if self.rng.random() < 0.5:
            self.each(lambda connection, _: connection.take_outgoing())
        assert self.rooms[0].taken == self.rooms[1].taken

    def answer(self) -> None:
        rng = self.rng
        for number, pair in list(self.streams.items()):
            if rng.random() < 0.3:
                continue
            action = rng.randrange(8)
            size = rng.choice([0, 3, 30, 300, 20_000, 70_000])
            end = rng.random() < 0.5
            if action == 0:
                self.act("respond", pair, HEADS[0], b"b" * size)
            elif action == 1:
                self.act("send_head", pair, rng.choice(HEADS), end=end)
            elif action == 2:
                self.act("send_data", pair, b"d" * size, end=end)
            elif action == 3:
                self.act("send_trailers", pair, TRAILERS)
            elif action == 4:
                self.act("take_body", pair)
            elif action == 5:
                sent = [
                    grpc_calls.reply(c, s, b"m" * size)
                    for c, s in zip(self.both, pair, strict=True)
                ]
                assert sent[0] is sent[1]
            elif action == 6 and not pair[0].head_sent:
                one, other = pair
                sent_one = grpc_calls.reply(self.both[0], one, b"m" * size)
                assert self.both[1].reply(other, b"m" * size) is sent_one
            else:
                self.act("reset", pair, 8)
            if rng.random() < 0.7:
                del self.streams[number]
            self.check()

    def act(self, name: str, pair: list[Any], *args: Any, **words: Any) -> None:
        self.each(lambda connection, side: getattr(connection, name)(pair[side], *args, **words))

    def something_else(self) -> None:
        rng = self.rng
        action = rng.randrange(12)
        if action == 0:
            self.each(lambda connection, _: connection.ping(b"12345678"))
        elif action == 1:
            self.each(lambda connection, _: connection.shutdown())
        elif action == 2 and rng.random() < 0.1:
            self.collect(lambda connection: connection.close(8, b"bye"))
        elif action == 3:
            self.now += rng.choice([1, 100, 5_000, 40_000])
            self.collect(lambda connection: connection.expire(self.now))
        elif action == 4:
            self.now += rng.choice([1, 50, 1_000])

    def end(self) -> None:
        self.collect(lambda connection: connection.lost())
        assert self.rooms[0].taken == self.rooms[1].taken == 0


def interpreted_call(stream: Any) -> Any:
    """What `plain_call` may answer: the deadline and message of a call that is right, or None."""
    try:
        if stream.fault or not stream.ended or not grpc_calls.is_grpc(stream):
            return None
        call = grpc_calls.read_call(stream)
        if call.encoding != "identity" or ";" in stream.get("content-type"):
            return None
        return call.timeout_ms, grpc_calls.read_message(stream.body, call.encoding, 100_000)
    except grpc_calls.GrpcError:
        return None


def compiled_call(stream: Any) -> Any:
    return compiled.plain_call(stream, 100_000)


def converse(seed: str) -> None:
    rng = random.Random(seed)
    pair = Pair(rng)
    data = Client(rng).conversation()
    at = 0
    while at < len(data) and not pair.both[0].ended:
        size = rng.choice([1, 9, 50, 1_000, 100_000])
        pair.feed(data[at : at + size])
        at += size
        if rng.random() < 0.3:
            pair.something_else()
    pair.end()


@pytest.mark.parametrize("part", range(4))
def test_conversations_agree(part: int) -> None:
    """Requests, answers, floods, stalls, nonsense; with small bounds and large ones."""
    for number in range(200):
        converse(f"http2/{part}/{number}")


def test_another_connection_may_be_read_while_a_request_is_made() -> None:
    """By another thread, where the garbage collector runs something that lets it go on: fields are
    read into one place for all connections, and each request gets its own."""
    paths = (b"/one", b"/other")
    one, other = (compiled.Http2Connection(compiled.Http2Options(), 0) for _ in paths)
    heads = [
        _hpack.Encoder().encode(
            _hpack.HeaderBlock((), [(b":method", b"GET"), (b":scheme", b"http"), (b":path", path)])
        )
        for path in paths
    ]
    for connection in (one, other):
        connection.feed(_connection.PREFACE + frame(4, 0, 0), 0)
    # Kept, so that streams take new memory, which is when the collector may run.
    kept: list[Any] = []
    numbers = itertools.count(1, 2)

    def read_other(phase: str, _: Any) -> None:
        if phase == "start":
            kept.extend(other.feed(frame(1, 0x05, next(numbers), heads[1]), 0))

    gc.collect()
    thresholds = gc.get_threshold()
    gc.callbacks.append(read_other)
    try:
        for number in range(1, 101, 2):
            data = frame(1, 0x05, number, heads[0])
            # So many of them, before the first that `feed` makes.
            kept.extend([[] for _ in range(number % 7)])
            gc.set_threshold(2)
            kept.extend(one.feed(data, 0))
            gc.set_threshold(*thresholds)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(read_other)
    assert {stream.path for stream in one.streams} == {"/one"}
    assert {stream.path for stream in other.streams} == {"/other"}
