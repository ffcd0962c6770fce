"""Requests come out whole and in order, however their bytes arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.http._answers import ProblemError
from penstock.service.http._head import Bounds, parse_head
from penstock.service.http._reader import Reader
from penstock.service.http._router import Route, Routes

BOUNDS = Bounds(body_bytes=64)


class Held:
    """Counts what is reserved."""

    def __init__(self) -> None:
        self.bytes = 0
        self.urged = 0

    def begin(self, _route: Route, reserved: int, waits: bool) -> None:
        self.bytes += reserved
        self.urged += waits


def new_reader(held: Held | None = None) -> Reader:
    def route(raw: bytes) -> Route:
        head = parse_head(raw, BOUNDS)
        expects = "expect" in head.headers
        return Route(lambda body: body, max_bytes=1_000, expects=expects)

    held = held or Held()
    routes = Routes(route, lambda route, _client: route, BOUNDS)
    return Reader(routes, BOUNDS, held.begin)


def bodies(reader: Reader, *parts: bytes) -> list[bytes]:
    found = []
    for part in parts:
        reader.feed(part)
        while (request := reader.take()) is not None:
            found.append(request[1])
    return found


HEAD = b"POST /check HTTP/1.1\r\nHost: a\r\n"
PLAIN = HEAD + b"Content-Length: 5\r\n\r\nhello"
EMPTY = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LONG = HEAD + b"Content-Length: 300\r\n\r\n" + b"x" * 300
CHUNKS = (
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n006;a=b\r\n world\r\n0\r\nX-Trailer: y\r\n\r\n"
)
STREAM = PLAIN + EMPTY + CHUNKS + LONG + CHUNKS + PLAIN
EXPECTED = [b"hello", b"", b"hello world", b"x" * 300, b"hello world", b"hello"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_requests_do_not_depend_on_how_their_bytes_are_cut(cuts: list[int]) -> None:
    """Six requests in one stream, cut anywhere."""
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[a:b] for a, b in pairwise(edges)]
    held = Held()
    reader = new_reader(held)
    assert bodies(reader, *parts) == EXPECTED
    assert (reader.unread, reader.has_more, reader.phase) == (0, False, "")


def test_requests_can_be_fed_byte_by_byte() -> None:
    """The finest cut of all."""
    parts = [STREAM[i : i + 1] for i in range(len(STREAM))]
    assert bodies(new_reader(), *parts) == EXPECTED


@pytest.mark.parametrize(
    "chunks",
    [
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"fffffffff\r\n",
        b"5;" + b"x" * 2000,
        b"0\r\nno trailer\r\n\r\n",
        b"0\r\n" + b"A: b\r\n" * 40 + b"\r\n",
    ],
)
def test_bad_chunks_end_the_connection(chunks: bytes) -> None:
    """Sizes that are no sizes, ends that are no ends."""
    with pytest.raises(ProblemError) as caught:
        bodies(new_reader(), HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert caught.value.problem.status == 400


def test_a_body_beyond_its_bound_is_refused_before_it_arrives() -> None:
    """By its length, or by the size of a chunk."""
    for raw in (
        HEAD + b"Content-Length: 1001\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n",
    ):
        with pytest.raises(ProblemError) as caught:
            bodies(new_reader(), raw)
        assert caught.value.problem.status == 413


def test_a_head_without_an_end_is_refused_at_its_bound() -> None:
    """Neither buffered for ever nor parsed in part."""
    reader = new_reader()
    with pytest.raises(ProblemError) as caught:
        bodies(reader, b"GET / HTTP/1.1\r\nX: " + b"y" * BOUNDS.head_bytes)
    assert caught.value.problem.status == 431


def test_lines_that_end_with_lf_alone_are_refused_at_once() -> None:
    """Their head would never end."""
    with pytest.raises(ProblemError):
        bodies(new_reader(), b"GET / HTTP/1.1\nHost: a\n\n")


def test_a_client_that_waits_to_go_on_is_told_once() -> None:
    """And not at all if its body is there already."""
    held = Held()
    head = HEAD + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    assert bodies(new_reader(held), head, b"he", b"llo") == [b"hello"]
    assert held.urged == 1
    assert bodies(new_reader(held), head + b"hello") == [b"hello"]
    assert held.urged == 1


def test_long_bodies_are_announced_and_do_not_count_as_unread() -> None:
    """Room is set aside for them as a whole; short ones count as they come."""
    held = Held()
    reader = new_reader(held)
    assert bodies(reader, LONG[:-1]) == []
    assert (held.bytes, reader.unread) == (300, 0)
    reader = new_reader(held)
    assert bodies(reader, PLAIN[:-2]) == []
    assert (held.bytes, reader.unread) == (300, 3)


@pytest.mark.parametrize("stream", [PLAIN[:-1], CHUNKS[:-30], EMPTY + PLAIN])
def test_nothing_is_kept_once_the_connection_is_over(stream: bytes) -> None:
    """Nor after everything has been taken: an idle connection costs little."""
    reader = new_reader()
    reader.feed(stream)
    reader.take()
    reader.forget()
    assert (reader.unread, reader.has_more, reader.phase) == (0, False, "")


def test_a_body_in_very_many_chunks_is_put_together_in_steps() -> None:
    """Each is cheap for the client and dear for us, so others are let in between."""
    reader = new_reader()
    reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 900 + b"0\r\n\r\n")
    steps, request = 1, reader.take()
    while request is None:
        assert reader.has_more
        steps, request = steps + 1, reader.take()
    assert request[1] == b"x" * 900
    assert steps > 5
    assert (reader.unread, reader.has_more) == (0, False)
