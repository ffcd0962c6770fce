"""A Check that is answered in compiled code gets the answer that it would get otherwise.

Two servers on clocks that stand still are asked the same, by clients that write frames by hand: one
answers what it can in compiled code, the other everything in Python. What each call gets, and all
that is counted, must match.
"""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import pytest

from penstock.config import parse_policies
from penstock.core._clock import ManualClock
from penstock.service import Service
from penstock.service._core import build_service
from penstock.service.grpc import open_grpc
from penstock.service.http2._hpack import Decoder
from penstock.wire.proto import rate_limiter_pb2 as pb

from ..service.http2.frames import (
    DATA,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    begin,
    frame,
    frames,
    request,
    reset,
)

pytest.importorskip("penstock.accel._grpc")

CHECK = "/throttlekit.v1.RateLimiter/Check"
POLICIES = """
version: 1
limiters:
  plenty: {strategy: gcra, limit: 1000, period: 1s, burst: 100000}
  few: {strategy: fixedWindow, limit: 3, window: 1m}
  bucket: {strategy: tokenBucket, capacity: 5, refillPerSec: 1}
  several:
    limits:
      user: {by: user, strategy: fixedWindow, limit: 2, window: 1m}
      key: {by: key, strategy: fixedWindow, limit: 5, window: 1m}
  slots: {concurrency: {minLimit: 1, maxLimit: 4}}
"""
NAMES = ["plenty", "few", "bucket", "several", "slots", "plent", "", "é"]
KEYS = ["a", "b", "", "ünïcode", "\N{SNOWMAN}" * 300, "x" * 5_000, "a b", "\x00"]
COSTS = [0, 0, 1, 1, 2, 7, -1, 2**53 - 1, 2**53, 2**63 - 1]


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_over = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    abort = write_eof = close

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _name: str) -> None:
        return None

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int) -> None: ...


class Served:
    """A service, its server and one connection at a time."""

    def __init__(self, service: Service, server: Any) -> None:
        self.service = service
        self.server = server

    @classmethod
    async def open(cls, *, ready: bool, **options: Any) -> Served:
        clock = ManualClock(1_700_000_000_000)
        service = build_service(parse_policies(POLICIES, "test.yaml"), clock=clock)
        server = await open_grpc(service, port=0, **options)
        assert server.calls.ready is not None
        if not ready:
            server.calls.ready = None
        return cls(service, server)

    def connect(self) -> None:
        self.transport = Transport()
        self.client = self.server.connection(None)
        self.client.connection_made(self.transport)

    async def feed(self, data: bytes) -> None:
        if not self.transport.is_over:
            self.client.data_received(data)
        for _ in range(5):
            await asyncio.sleep(0)
        # A stranger is served when others have had their part of the loop.
        deadline = asyncio.get_running_loop().time() + 30
        while self.client.is_blocked and not self.transport.is_over:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.001)
        # Places of replies that were taken are given back now and then: here, now.
        self.server.tick()

    def answers(self) -> dict[int, list[Any]]:
        """What each stream got, and in 0 what the connection did."""
        decoder, found = Decoder(2**20, 1_000), dict[int, list[Any]]()
        for kind, flags, stream, payload in frames(bytes(self.transport.written)):
            told: Any = dict(decoder.decode(payload)) if kind == HEADERS else payload
            if kind == HEADERS and told.get(b"grpc-status") == b"8":
                # When to come back is different for everybody.
                told = {name: told[name] for name in (b":status", b"grpc-message")}
            found.setdefault(stream, []).append((kind, flags, told))
        return found

    def counts(self) -> Any:
        told = self.service.snapshot()
        return told.policies, told.grpc_codes, told.grpc_shed, told.latency["grpc"].count

    async def close(self) -> None:
        self.client.connection_lost(None)
        await self.server.drain(1)
        await self.service.aclose()


def message(rng: random.Random) -> bytes:
    """Mostly a CheckRequest."""
    asked = pb.CheckRequest(policy=rng.choice(NAMES), key=rng.choice(KEYS), cost=rng.choice(COSTS))
    if rng.random() < 0.15:
        asked.attributes.add(name="user", text=rng.choice("ab"))
    data = bytearray(asked.SerializeToString())
    kind = rng.random()
    if kind < 0.1 and data:
        data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind < 0.15:
        data += pb.CheckRequest(key="z", cost=1).SerializeToString()
    elif kind < 0.2:
        # A field that is not known, an empty one, and a length that is spelled at length.
        data += rng.choice([b"\x78\x01", b"\x0a\x00", b"\x12\x81\x00k", b"\x18\x00", b"\x18"])
    elif kind < 0.22:
        del data[rng.randrange(len(data) + 1) :]
    return bytes(data)


def call(rng: random.Random, stream: int, is_cut: bool) -> bytes:
    """One that is refused by its head alone is not cut, as it would be told after a moment."""
    body = message(rng)
    extra = [(b"authorization", rng.choice([b"Bearer good", b"Bearer good", b"bearer  bad", b""]))]
    if rng.random() < 0.2:
        extra.append((b"grpc-timeout", rng.choice([b"1H", b"0m", b"1x", b"99999999S"])))
    if rng.random() < 0.1:
        extra.append((b"grpc-encoding", rng.choice([b"identity", b"gzip", b"none"])))
    changed: dict[str, Any] = {}
    if rng.random() < 0.1:
        changed = {"te": None} if is_cut else {"content_type": "text/x"}
    flag = 0 if rng.random() < 0.95 else 1
    size = len(body) if rng.random() < 0.95 else rng.randrange(2**32)
    data = struct.pack(">BI", flag, size) + body
    sent = request(stream, *extra, path=CHECK, **changed) + frame(DATA, END_STREAM, stream, data)
    return sent + reset(stream) if rng.random() < 0.05 else sent


@pytest.mark.parametrize("options", [{}, {"token": "good"}, {"max_concurrent": 2}])
def test_checks_get_the_same_answers_and_counts(options: dict[str, Any]) -> None:
    """Right calls and wrong ones, with windows for the replies that may be too small."""
    asyncio.run(_compare(options))


async def _compare(options: dict[str, Any]) -> None:
    rng = random.Random(f"grpc/{sorted(options)}")
    pair = [await Served.open(ready=ready, **options) for ready in (True, False)]
    for _ in range(12):
        windows = rng.choice([65_535, 65_535, 60, 10, 0])
        reads, stream = [begin((INITIAL_WINDOW, windows))], 1
        for _ in range(8):
            data, is_cut = b"", not options and rng.random() < 0.5
            for _ in range(rng.randrange(1, 6)):
                data += call(rng, stream, is_cut)
                stream += 2
            cut = rng.randrange(len(data)) if is_cut else 0
            reads += [data[:cut], data[cut:]] if cut else [data]
        for served in pair:
            served.connect()
            for data in reads:
                await served.feed(data)
        fast, plain = (served.answers() for served in pair)
        assert fast == plain
        assert pair[0].counts() == pair[1].counts()
        pair[0].client.connection_lost(None)
        pair[1].client.connection_lost(None)
    for served in pair:
        await served.close()


def test_a_usual_check_does_not_come_to_the_interpreted_server() -> None:
    """From the second call of a client on, with its token and its deadline."""
    asyncio.run(_ask_thrice())


async def _ask_thrice() -> None:
    served = await Served.open(ready=True, token="good")
    served.connect()
    asked = pb.CheckRequest(policy="few", key="a").SerializeToString()
    token, deadline = (b"authorization", b"Bearer good"), (b"grpc-timeout", b"1H")

    async def ask(stream: int) -> None:
        head = request(stream, token, deadline, path=CHECK)
        body = struct.pack(">BI", 0, len(asked)) + asked
        await served.feed(head + frame(DATA, END_STREAM, stream, body))

    await served.feed(begin())
    await ask(1)

    def fail(*_: Any) -> None:
        raise AssertionError("it came here")

    served.server.calls.answer = fail
    await ask(3)
    await ask(5)
    answers = served.answers()
    assert [len(answers[stream]) for stream in (1, 3, 5)] == [3, 3, 3]
    assert served.service.snapshot().grpc_codes == {"OK": 3}
    await served.close()
