"""What is compiled reads and writes as what is interpreted does, to the byte."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from penstock import (
    Decision,
    Limit,
    ManualClock,
    Strategy,
    Verdict,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.config import parse_policies
from penstock.core import native
from penstock.service import _core as core
from penstock.service.http import _answers, _charge_calls, _head, _ready, _router
from penstock.service.http._answers import CLIENT, NESTED, PLAIN, decision_reply
from penstock.service.http._charge_calls import VerdictForm
from penstock.service.http._server import HttpServer
from penstock.stores.redis import RedisStore
from penstock.strategies import FixedWindow
from tests.servers import Valkey, require
from tests.service.worlds import FILE

from .test_fuzz import BODIES, mutated

pytestmark = pytest.mark.skipif(native is None, reason="nothing is compiled here")


def test_replies_are_written_alike() -> None:
    """Whatever the numbers are."""
    chance = random.Random("replies")
    for _ in range(3_000):
        size = chance.choice((4, 20, 54, 63))
        fields = [chance.randint(-(2**size) + 1, 2**size - 1) for _ in range(4)]
        decision = Decision(chance.random() < 0.5, *fields)
        form = chance.choice((PLAIN, NESTED, CLIENT))
        asked = (b"HTTP/1.1 200 OK\r\n", b"RateLimit: a;r=", decision, fields[0], form)
        assert native.decision_reply(*asked) == decision_reply(*asked)


class MemoryTransport(asyncio.Transport):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    abort = close


SEVERAL = """
  many:
    limits:
      user: {by: user, strategy: fixedWindow, limit: 40, window: 1m}
      tokens: {by: user, cost: tokens, strategy: gcra, limit: 900, period: 1m, optional: true}
      key: {by: key, strategy: gcra, limit: 9, period: 1m, optional: true}
      all: {strategy: tokenBucket, capacity: 50, refillPerSec: 1}
    plans: {pro: {user: {limit: 90}}}
  pair:
    limits:
      user: {by: user, strategy: fixedWindow, limit: 40, window: 1m}
      all: {strategy: fixedWindow, limit: 50, window: 1m, shadow: true}
  tiers:
    limits:
      user: {by: user, strategy: gcra, limit: 6, period: 1m}
      tenant: {by: tenant, strategy: slidingWindow, limit: 30, window: 1m}
      log: {by: user, strategy: slidingWindowLog, limit: 8, window: 1h, shadow: true}
      all: {strategy: tokenBucket, capacity: 400, refillPerSec: 0.5}
    plans:
      by: plan
      pro: {user: {limit: 90}}
      free: {user: {limit: 2}, tenant: unlimited}
      none: {user: unlimited, tenant: unlimited, log: unlimited, all: unlimited}
      watched: {user: unlimited, tenant: unlimited, all: unlimited}
    overrides:
      user: {alice: {limit: 3}, eve: unlimited}
  own:
    limits:
      user: {by: user, strategy: fixedWindow, limit: 5, window: 1m}
      again: {by: user, strategy: fixedWindow, limit: 9, window: 1m}
    plans: {by: user, u: {user: {limit: 3}}}
"""


async def answers(streams: list[list[bytes]], redis: str = "") -> tuple[list[bytes], Any]:
    """What a new server answers to these, each on a connection of its own and in these parts, and
    what it has counted then. On Redis, each part is one request."""
    file = parse_policies(FILE + SEVERAL, "test")
    store = None
    if redis:
        store = RedisStore.from_url(redis, use_server_time=False, timeout_ms=20_000)
    service = core.build_service(file, clock=ManualClock(1_700_000_000_000), store=store)
    server = HttpServer(service, hosts=["a"])
    await server.start("127.0.0.1", 0)
    replies = []
    for parts in streams:
        connection, transport = server.connection(None), MemoryTransport()
        connection.connection_made(transport)
        for part in parts:
            before = len(transport.sent)
            connection.data_received(part)
            while redis and len(transport.sent) == before:
                await asyncio.sleep(0)
            # What is queued, or has to be waited for, is answered by and by.
            for _ in range(4):
                await asyncio.sleep(0)
        for _ in range(16):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        replies.append(transport.sent)
    seen = service.snapshot()
    counted = (server.answers.statuses, seen.policies, seen.latency["http"].count)
    await server.stop()
    await service.aclose()
    return replies, counted


def both_ways(
    streams: list[list[bytes]], monkeypatch: pytest.MonkeyPatch, servers: Sequence[str] = ("", "")
) -> list[bytes]:
    """What they are answered, which is the same either way, as is what is counted."""
    with monkeypatch.context() as patched:
        for module in (_head, _answers, _ready, _charge_calls):
            patched.setattr(module, "native", None)
        patched.setattr(_answers, "_decision_reply", decision_reply)
        wanted = asyncio.run(answers(streams, servers[0]))
    assert asyncio.run(answers(streams, servers[1])) == wanted
    return wanted[0]


def whole(first: bytes, body: bytes) -> bytes:
    head = b"%b\r\nHost: a\r\nX-Request-Id: 7\r\nContent-Length: %d\r\n\r\n" % (first, len(body))
    return head + body


REQUESTS = [
    *(
        whole(b"POST %b HTTP/1.1" % path.encode(), json.dumps(body).encode())
        for path, bodies in BODIES.items()
        if path not in ("/v1/admit", "/v1/heartbeat", "/v1/release")
        for body in bodies
    ),
    b"GET /check/alice HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /check/%C3%A9?headers=x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
]


def test_requests_cut_at_every_byte_are_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time, of every kind."""
    streams = []
    for number, request in enumerate(REQUESTS):
        pair = request + REQUESTS[number - 1]
        streams += [[pair[:cut], pair[cut:]] for cut in range(1, len(pair))]
        streams.append([pair[at : at + 1] for at in range(len(pair))])
    replies = both_ways(streams, monkeypatch)
    assert all(reply.count(b"HTTP/1.1 ") == 2 for reply in replies)


def test_requests_changed_at_random_are_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allowed, denied or refused, in the same words, with the connection kept or closed; whether
    they arrive together or one by one."""
    chance = random.Random("requests")
    streams = []
    for _ in range(2_000):
        parts = [mutated(chance.choice(REQUESTS), chance), *chance.choices(REQUESTS, k=2)]
        chance.shuffle(parts)
        streams.append(parts if chance.random() < 0.7 else [b"".join(parts)])
    replies = both_ways(streams, monkeypatch)
    for status in (200, 400, 429):
        assert sum(b"HTTP/1.1 %d" % status in reply for reply in replies) > 100, status


BODIES_AT_ONCE = [
    *(
        b'{"key":"k","limit":3,"window_ms":60000}',
        b'{"key":"k","limit":3,"window_ms":60000,"cost":2}',
    ),
    *(b'{"policy":"api","key":"k"}', b'{"policy":"api","key":"\xc3\xa9","cost":3}', b"{}", b""),
    *(
        b'{"policy":"nobody","key":"k"}',
        b'{"policy":"slots","key":"k"}',
        b'{"policy":"llm","key":"k"}',
    ),
    *(
        b'{"policy":"api","key":""}',
        b'{"policy":"api","key":"k","cost":0}',
        b'{"key":"k","limit":0}',
    ),
    *(b'{"key":"k","limit":0,"window_ms":1}', b'{"key":"k","limit":1,"window_ms":9999999999999}'),
    *(b'{"policy":"api","key":"k","limit":1}', b'{"policy":"api","policy":"api","key":"k"}'),
    *(b'{"key":1,"limit":3,"window_ms":60000}', b'{"policy":1,"key":"k"}', b'{"policy":"api"}'),
    b'{"key":"k","limit":3,"window_ms":60000,"strategy":"gcra"}',
    *(b'{"policy":"api","key":"k","cost":%b}' % cost for cost in (b"01", b"1.0", b"1e0", b"-1")),
    *(b'{"policy":"api","key":"%b"}' % key for key in (b"\\u006b", b"\xff", b"\n", b"\x7f")),
    *(
        b'{"policy":"%b","attributes":%b%b}' % (policy, told, more)
        for policy in (b"many", b"pair", b"api", b"nobody", b"slots")
        for told in (
            *(b'{"user":"u"}', b'{"user":"\xc3\xa9"}', b"{}", b'{"user":""}', b'{"user":7}'),
            *(b'{"user":"u","user":"v"}', b'{"user":"u","plan":"pro"}', b'{"user":["u"]}'),
            *(b'{"user":"u","tokens":700}', b'{"user":"u","tokens":-1}', b'{"user":"u",}'),
            *(b'{"user":{"u":1}}', b'{"user":"u"', b'[{"user":"u"}]', b'{ "user" : "u" }'),
            *(
                b'{"user":"\xff"}',
                b'{"plan":"pro"}',
                b'{"user":"u","colour":"red"}',
                b'{"user":1.5}',
            ),
        )
        for more in (b"", b',"cost":2', b',"key":"k"', b',"limit":0', b',"attributes":{"user":"u"}')
    ),
    *(b'{"attributes":{"user":"u"}}', b'{"attributes":{"user":"u"},"policy":"pair","cost":0}'),
    *(b' { "policy" : "api" ,"key":"k"}\n', b'{"policy":"api","key":"k"}}', b'{"key":"k",}'),
]


@pytest.mark.parametrize("path", ["/check", "/v1/check", "/check?headers=x"])
def test_a_check_that_arrives_whole_is_answered_alike(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time a shape is met, which is when its route is known."""
    asked = [whole(b"POST %b HTTP/1.1" % path.encode(), body) for body in BODIES_AT_ONCE]
    closing = [request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) for request in asked]
    clients = [
        b"GET /check/%b HTTP/1.1\r\nHost: a\r\n\r\n" % c for c in (b"k", b"%6b", b"%ff", b"k")
    ]
    parts = [part for part in (*asked, *clients) for _ in range(3)]
    [replies, *_] = both_ways([parts, *([part] for part in closing)], monkeypatch)
    assert replies.count(b"HTTP/1.1 ") == len(parts)


def test_a_check_that_arrives_whole_takes_the_compiled_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the comparisons here compare something: the router is asked for the first only."""
    seen, find = [], _router.Routes.find

    def watched(routes: _router.Routes, raw: bytes) -> tuple[_router.Route, int]:
        seen.append(raw)
        return find(routes, raw)

    monkeypatch.setattr(_router.Routes, "find", watched)
    [_] = asyncio.run(answers([[REQUESTS[0]] * 3]))[0]
    assert len(seen) == 1
    # Some of so many have to wait for their turn.
    [_] = asyncio.run(answers([[REQUESTS[0]] * 600]))[0]
    assert len(seen) == 2


def told_at_random(chance: random.Random) -> bytes:
    """A check by attributes, of which some say too much, too little or something else."""
    told: dict[str, Any] = {"user": chance.choice(("u", "alice", "eve", "\u00e9", "x" * 200, ""))}
    if chance.random() < 0.8:
        told["tenant"] = chance.choice(("t", "t", "t", "other", 7))
    if chance.random() < 0.6:
        told["plan"] = chance.choice(("pro", "free", "none", "watched", "gold", 1))
    policy = chance.choice(("tiers", "tiers", "tiers", "own", "pair", "many"))
    if policy != "tiers" and chance.random() < 0.9:
        told = {"user": told["user"]}
    asked: dict[str, Any] = {"policy": policy, "attributes": told}
    if chance.random() < 0.4:
        asked["cost"] = chance.choice((1, 2, 5, 2**52, 0, 2**53, -1))
    return json.dumps(asked, ensure_ascii=False).encode()


def test_checks_by_attributes_are_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """By plan, by key and by neither; whichever limits, and shadows, deny."""
    chance = random.Random("attributes")
    bodies = [told_at_random(chance) for _ in range(3_000)]
    asked = [whole(b"POST /v1/check HTTP/1.1", body) for body in bodies]
    [replies] = both_ways([asked], monkeypatch)
    assert replies.count(b"HTTP/1.1 200") > 1_000
    assert replies.count(b"HTTP/1.1 400") > 300
    assert replies.count(b"Retry-After") > 100
    assert replies.count(b'"shadowed":["log"]') > 50
    assert replies.count(b'"binding":"","violated":[],"shadowed":["log"]') > 20


def test_checks_by_attributes_on_redis_are_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the decisions come from a store that tells by a call."""
    require("valkey")
    chance = random.Random("attributes on redis")
    bodies = [told_at_random(chance) for _ in range(600)]
    asked = [whole(b"POST /v1/check HTTP/1.1", body) for body in bodies]
    with Valkey() as server:
        databases = [f"{server.url}/{number}" for number in (1, 2)]
        [replies] = both_ways([asked], monkeypatch, databases)
    assert replies.count(b"HTTP/1.1 200") > 200
    assert replies.count(b"HTTP/1.1 400") > 60
    assert replies.count(b"Retry-After") > 20
    assert replies.count(b'"shadowed":["log"]') > 5
    assert replies.count(b'"binding":""') > 20


def test_verdicts_are_written_alike() -> None:
    """By whichever strategies, whatever they said, and whenever that was."""
    chance = random.Random("verdicts")
    kinds = [
        *(gcra(100, 60_000), gcra(7, 3_000, 20), token_bucket(40, 0.7), token_bucket(3, 2.5)),
        *(fixed_window(9, 60_000), sliding_window(50, 60_000), sliding_window(9, 900, 3)),
        *(sliding_window_log(5, 9_000), Patient(9, 60_000)),
    ]
    for _ in range(3_000):
        chosen = chance.choices(kinds, k=chance.randint(1, 16))
        limits = {
            f"limit-{number}": Limit(strategy, shadow=chance.random() < 0.3)
            for number, strategy in enumerate(chosen)
        }
        now = 1_700_000_000_000 + chance.randrange(10**6)
        decisions = tuple([said(strategy, now, chance) for strategy in chosen])
        shadows = tuple([limit.shadow for limit in limits.values()])
        verdict = Verdict(tuple(limits), decisions, shadows, now)
        form = VerdictForm(limits)
        lines, body = form.headers(verdict, now, False, False), form.body(verdict)
        wanted = f"HTTP\r\nContent-Length: {len(body)}\r\n{lines}\r\n{body}".encode()
        assert form.compiled.reply(b"HTTP\r\n", decisions, verdict.allowed, now) == wanted


class Patient(FixedWindow):
    """Says something of its own about when there is more."""

    def more_in_ms(self, decision: Decision, now: int, peeked: bool = False) -> float:
        return 7_000.5


def said(strategy: Strategy, now: int, chance: random.Random) -> Decision:
    """What a strategy may say, or nearly."""
    if chance.random() < 0.5:
        return strategy.check(None, now, chance.choice((1, 1, 2, 9))).result
    allowed, reset_at = chance.random() < 0.6, now + chance.randrange(-10, 10**5)
    remaining = chance.choice((0, chance.randint(0, strategy.limit), 2**52))
    return Decision(allowed, strategy.limit, remaining, reset_at, 0 if allowed else reset_at % 9999)


async def answers_across_a_reload() -> bytes:
    clock = ManualClock(1_700_000_000_000)
    service = core.build_service(parse_policies(FILE, "test"), clock=clock)
    server = HttpServer(service)
    await server.start("127.0.0.1", 0)
    connection, transport = server.connection(None), MemoryTransport()
    connection.connection_made(transport)
    requests = [whole(b"POST /v1/check HTTP/1.1", b'{"policy":"api","key":"k"}'), REQUESTS[0]]
    for prefix, limit in (("a", 3), ("b", 7)):
        api = {"strategy": "fixedWindow", "limit": limit, "window": "1m"}
        file = {"version": 1, "defaults": {"prefix": prefix}, "limiters": {"api": api}}
        service.apply(parse_policies(json.dumps(file), "test.json"))
        for request in requests * 3:
            connection.data_received(request)
    connection.connection_lost(None)
    await server.stop()
    await service.aclose()
    return transport.sent


def test_policies_that_are_replaced_decide_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of the file nor, under another prefix, those that requests bring along."""
    sent = asyncio.run(answers_across_a_reload())
    assert sent.count(b'"limit":3') == sent.count(b'"limit":7') == 3
    assert sent.count(b'"remaining":8,"limit":9') == 2
    with monkeypatch.context() as patched:
        patched.setattr(_ready, "native", None)
        assert asyncio.run(answers_across_a_reload()) == sent
