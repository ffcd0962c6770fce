"""What is compiled reduces the heads of requests as what is interpreted does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.core import native
from penstock.service.http import _answers
from penstock.service.http._answers import ProblemError
from penstock.service.http._head import ESSENTIAL, Bounds, parse_head, reduce_head, reduced_head

from .test_fuzz import mutated
from .test_head import REFUSED

pytestmark = pytest.mark.skipif(native is None, reason="nothing is compiled here")

BOUNDS = Bounds(head_fields=12)
FIRST = [
    *(
        b"POST /check HTTP/1.1",
        b"GET /check/alice HTTP/1.1",
        b"GET /check/a%20b?headers=x HTTP/1.1",
    ),
    *(b"POST /v1/check?headers=x HTTP/1.1", b"HEAD /health HTTP/1.0", b"GET /check/* HTTP/1.1"),
    *(b"GET http://a/check/alice HTTP/1.1", b"GET http://a?b HTTP/1.1", b"GET /check/a/b HTTP/1.1"),
    *(b"GET /check/%zz HTTP/1.1", b"GET /check/a#b HTTP/1.1", b"GET /check/ HTTP/1.1", b"GET /"),
    *(b"POST /check/alice HTTP/1.1", b"GET /check/a b HTTP/1.1", b"GET /check/? HTTP/1.1"),
]
FIELDS = [
    *(b"Host: a", b"host:a:80", b"HOST: \tb", b"Host: a b", b"Content-Type: application/json"),
    *(b"Content-Length: 12", b"content-length:0 \t", b"Content-Length: 1a", b"Content-Length:"),
    *(b"Content-Length: 0000000000000012", b"CONTENT-LENGTH: 5", b"Transfer-Encoding: chunked"),
    *(b"transfer-encoding: gzip", b"Connection: close", b"connection: keep-alive", b"X: \xff\t y"),
    *(b"Expect: 100-continue", b"expect: x", b"Authorization: Bearer t", b"Origin: http://a"),
    *(b"Sec-Fetch-Site: cross-site", b"X-RateLimit-Format: legacy", b"traceparent: 00-1-2-01"),
    *(b"x-request-id: 7", b"Cookie: a=b", b"X-Y:", b"X Y: z", b": z", b"X", b" X: y", b"X: \x00"),
    *(b"X: a\rb", b"X: a\nb", b"\xe9: y", b"Accept: */*", b"User-Agent: c/1", b"Hostt: a"),
]
USUAL = b"POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 52\r\ntraceparent: 00-1-2-01\r\n\r\n"


def heads(count: int, seed: str) -> Iterator[bytes]:
    """Put together at random, and some changed on top of it."""
    chance = random.Random(seed)
    for _ in range(count):
        lines = [chance.choice(FIRST)]
        if chance.random() < 0.9:
            lines.append(FIELDS[0])
        lines += chance.choices(FIELDS, k=chance.choice((0, 1, 1, 2, 2, 3, 5, 13)))
        head = b"\r\n".join(lines)
        if chance.random() < 0.3:
            head = mutated(head, chance)
        # As the reader hands it over: up to the first empty line.
        yield (head + b"\r\n\r\n").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def told(raw: bytes, reduce: Any) -> Any:
    """What the router gets to see of a head: all that an answer may depend on, or a refusal."""
    try:
        reduced, length, client = reduce(raw, BOUNDS)
        return parse_head(reduced, BOUNDS), length, client
    except ProblemError as error:
        return error.problem


def test_heads_are_reduced_alike() -> None:
    """Whatever is wrong with one is found, and put into the same words."""
    compiled = refused = 0
    for raw in [*heads(20_000, "heads"), *REFUSED.values()]:
        seen = told(raw, reduce_head)
        assert seen == told(raw, reduced_head), raw
        refused += isinstance(seen, _answers.Problem)
        compiled += native.reduced_head(raw, BOUNDS.head_fields, b"GET /check/") is not None
    assert compiled > 3_000
    assert refused > 3_000


@pytest.mark.parametrize("name", sorted(ESSENTIAL))
def test_what_an_answer_depends_on_stays_in_a_head(name: bytes) -> None:
    """However it is spelled."""
    for spelled in (name, name.upper(), name.title()):
        raw = b"GET / HTTP/1.1\r\nA: b\r\n%b: x\r\n\r\n" % spelled
        [reduced, _, _] = native.reduced_head(raw, 64, b"GET /check/")
        assert reduced == raw.replace(b"A: b\r\n", b"")


def test_what_is_left_out_of_a_head_changes_nothing() -> None:
    """The whole head says the same as the reduced one, of all that anybody asks it."""
    for raw in heads(3_000, "left out"):
        try:
            whole = parse_head(raw, BOUNDS)
        except ProblemError:
            continue
        reduced, length, client = reduced_head(raw, BOUNDS)
        short = parse_head(reduced, BOUNDS)
        path = short.path if client is None else "/check/" + client.decode()
        assert (whole.method, whole.path, whole.query) == (short.method, path, short.query)
        assert (whole.keep_alive, whole.is_modern) == (short.keep_alive, short.is_modern)
        assert whole.length == length
        asked = {"host", "expect", "authorization", "origin", "sec-fetch-site"}
        for name in asked | {"x-ratelimit-format", "transfer-encoding"}:
            assert whole.headers.get(name) == short.headers.get(name)


def test_a_usual_request_is_read_by_what_is_compiled() -> None:
    """So that the comparisons here compare something."""
    assert native.reduced_head(USUAL, 64, b"GET /check/") == (
        b"POST /check HTTP/1.1\r\nHost: a\r\n\r\n",
        52,
        None,
    )
