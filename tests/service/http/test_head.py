"""Heads are read strictly: what two servers could read in two ways is not read at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.http._answers import ProblemError
from penstock.service.http._head import CHUNKED, Bounds, parse_head

BOUNDS = Bounds()
HOST = b"Host: a\r\n"


def head(*lines: bytes, first: bytes = b"POST /check HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: a", *lines, b"", b""])


REFUSED = {
    "a length beside a transfer coding": head(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "two lengths": head(b"Content-Length: 5", b"Content-Length: 6"),
    "the same length twice": head(b"Content-Length: 5", b"Content-Length: 5"),
    "a list of lengths": head(b"Content-Length: 5, 5"),
    "a signed length": head(b"Content-Length: +5"),
    "a hexadecimal length": head(b"Content-Length: 0x5"),
    "an empty length": head(b"Content-Length:"),
    "a length of a thousand digits": head(b"Content-Length: " + b"9" * 1000),
    "an unknown transfer coding": head(b"Transfer-Encoding: gzip"),
    "chunked and something else": head(b"Transfer-Encoding: gzip, chunked"),
    "chunked twice": head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "chunked with a vertical tab": head(b"Transfer-Encoding: \x0bchunked"),
    "a transfer coding in HTTP/1.0": head(
        b"Transfer-Encoding: chunked", first=b"POST /check HTTP/1.0"
    ),
    "a continued line": head(b"X: a", b" b"),
    "a space before the colon": head(b"Content-Length : 5"),
    "a space before the name": head(b" Content-Length: 5"),
    "no colon": head(b"Content-Length 5"),
    "an empty name": head(b": 5"),
    "a bare LF": head(b"X: a\nContent-Length: 5"),
    "a bare CR": head(b"X: a\rContent-Length: 5"),
    "a NUL": head(b"X: a\x00b"),
    "two hosts": head(b"Host: b"),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two spaces in the first line": head(first=b"GET  /check HTTP/1.1"),
    "a tab in the first line": head(first=b"GET\t/check HTTP/1.1"),
    "no version": head(first=b"GET /check"),
    "a version from the future": head(first=b"GET /check HTTP/2.0"),
    "a lower-case method": head(first=b"get /check HTTP/1.1"),
    "a target in no known form": head(first=b"GET check HTTP/1.1"),
    "a target outside ASCII": head(first=b"GET /\xff HTTP/1.1"),
    "a leading empty line": b"\r\n" + head(),
    "a raw hash in the path": head(first=b"GET /check/a#b HTTP/1.1"),
    "a raw hash in the query": head(first=b"GET /check/a?b#c HTTP/1.1"),
    "a percent sign before no number": head(first=b"GET /check/a%zz HTTP/1.1"),
    "a percent sign at the end": head(first=b"GET /check/a%4 HTTP/1.1"),
    "a percent sign in the query": head(first=b"GET /check/a?b%zz HTTP/1.1"),
    "quotes in the path": head(first=b'GET /check/"a" HTTP/1.1'),
    "brackets in the path": head(first=b"GET /check/{a} HTTP/1.1"),
    "a backslash in the path": head(first=b"GET /check\\a HTTP/1.1"),
    "another host in the target": head(first=b"GET http://b/check/a HTTP/1.1"),
    "no host in the target": head(first=b"GET http:///check/a HTTP/1.1"),
    "a user in the target": head(first=b"GET http://u@a/check/a HTTP/1.1"),
    "an empty host": b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "a host with a space": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a list of hosts": b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "a host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a host with a user": b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
    "a host with a port in words": b"GET / HTTP/1.1\r\nHost: a:http\r\n\r\n",
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED)
def test_an_ambiguous_head_is_refused(raw: bytes) -> None:
    """Every shape that requests have been smuggled with."""
    with pytest.raises(ProblemError):
        parse_head(raw, BOUNDS)


def test_a_good_head_says_what_it_says() -> None:
    """Method, path, query, length and headers."""
    parsed = parse_head(
        head(b"Content-Length: 12 ", b"X-A: 1", b"x-a:2", first=b"POST /a%20b?c=d?e HTTP/1.1"),
        BOUNDS,
    )
    assert (parsed.method, parsed.path, parsed.query) == ("POST", "/a%20b", "c=d?e")
    assert parsed.length == 12
    assert parsed.keep_alive
    assert parsed.headers["x-a"] == "1, 2"


@pytest.mark.parametrize(
    ("first", "line", "stays"),
    [
        (b"GET / HTTP/1.1", b"X: y", True),
        (b"GET / HTTP/1.1", b"Connection: foo, Close", False),
        (b"GET / HTTP/1.0", b"Connection: keep-alive", False),
    ],
)
def test_a_connection_ends_when_the_client_says_so(first: bytes, line: bytes, stays: bool) -> None:
    """HTTP/1.0 always ends it."""
    assert parse_head(head(line, first=first), BOUNDS).keep_alive is stays


def test_a_proxy_may_put_the_host_into_the_target() -> None:
    """The absolute form means the path behind the host."""
    assert parse_head(head(first=b"GET http://A/b?c HTTP/1.1"), BOUNDS).path == "/b"
    assert parse_head(head(first=b"GET http://a HTTP/1.1"), BOUNDS).path == "/"
    assert parse_head(head(first=b"GET http://a?b HTTP/1.1"), BOUNDS).query == "b"


def test_headers_are_bounded_in_number() -> None:
    """One more than the bound is refused as too large."""
    with pytest.raises(ProblemError) as caught:
        parse_head(head(*[b"X: y"] * 64), BOUNDS)
    assert caught.value.problem.status == 431


class Peer:
    """What the other parser saw."""

    def __init__(self) -> None:
        self.complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


PIECES = st.sampled_from(
    [
        *(b"Content-Length: ", b"Transfer-Encoding: ", b"chunked", b"5", b"0", b", ", b"\t"),
        *(b"Host: ", b"a", b"X: ", b":", b" ", b"\r\n", b"\n", b"\r", b"\x00", b"\x0b", b"\xff"),
        *(b"Connection: ", b"close", b"gzip", b"+5", b"identity", b";", b'"'),
    ]
)


@given(st.lists(PIECES, max_size=12))
def test_whatever_is_accepted_another_strict_parser_accepts_too(pieces: list[bytes]) -> None:
    """Compared with llhttp, on heads put together at random."""
    httptools: Any = pytest.importorskip("httptools")
    raw = b"POST /check HTTP/1.1\r\nHost: a\r\n" + b"".join(pieces) + b"\r\n\r\n"
    raw = raw[: raw.index(b"\r\n\r\n") + 4]
    try:
        parsed = parse_head(raw, BOUNDS)
    except ProblemError:
        return
    peer = Peer()
    parser = httptools.HttpRequestParser(peer)
    parser.feed_data(raw)
    assert peer.complete
    assert parser.get_method() == parsed.method.encode()
    if parsed.length not in (0, CHUNKED):
        assert parsed.headers["content-length"] == str(parsed.length)
