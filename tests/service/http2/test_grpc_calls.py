"""Calls of gRPC: their heads, messages, metadata and ends."""

from __future__ import annotations

import gzip
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.service.grpc import _protocol as grpc
from penstock.service.grpc._protocol import GrpcError, Status
from penstock.service.http2._hpack import Decoder

from .frames import DATA, END_STREAM, HEADERS, Talk, call, frame, request


def stream(**headers: str) -> Any:
    """A call with these fields."""
    found = {"te": "trailers", "content-type": "application/grpc"}
    found |= {name.replace("_", "-"): value for name, value in headers.items()}
    fields = [(name.encode(), value.encode("latin-1")) for name, value in found.items()]
    return SimpleNamespace(method="POST", get=found.get, fields=fields)


@pytest.mark.parametrize(
    ("content_type", "answer"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;charset=utf-8", True),
        ("application/grpc ; x=y", True),
        ("application/grpc-web", False),
        ("application/grpc+json", False),
        ("application/grpcx", False),
        ("application/json", False),
        ("", False),
    ],
)
def test_a_call_is_known_by_its_content_type(content_type: str, answer: bool) -> None:
    """That of messages in the one encoding there is."""
    assert grpc.is_grpc(stream(content_type=content_type)) is answer


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1S", 1_000),
        ("20m", 20),
        ("1u", 1),
        ("1000u", 1),
        ("1001u", 2),
        ("1n", 1),
        ("0n", 0),
        ("2M", 120_000),
        ("1H", 3_600_000),
        ("99999999H", 99_999_999 * 3_600_000),
    ],
)
def test_deadlines_are_rounded_up_to_milliseconds(text: str, milliseconds: int) -> None:
    """Of all units that there are."""
    assert grpc.parse_timeout(text) == milliseconds


@pytest.mark.parametrize("text", ["", "1", "S", "1s", "-1S", "1.5S", "123456789S", " 1S", "1S "])
def test_what_is_no_deadline_is_refused(text: str) -> None:
    """Rather than taken for none."""
    with pytest.raises(GrpcError, match="grpc-timeout"):
        grpc.read_call(stream(grpc_timeout=text))


def test_the_head_of_a_call_says_what_it_says() -> None:
    """Its deadline, how its messages are compressed, and how those of the answer may be."""
    plain = grpc.read_call(stream())
    assert (plain.timeout_ms, plain.encoding, plain.accepts_gzip) == (None, "identity", False)
    packed = grpc.read_call(
        stream(grpc_timeout="5S", grpc_encoding="gzip", grpc_accept_encoding="identity, gzip")
    )
    assert (packed.timeout_ms, packed.encoding, packed.accepts_gzip) == (5_000, "gzip", True)


def test_a_call_that_is_none_is_refused() -> None:
    """Another method, a proxy that would drop trailers, a compression that is not known."""
    odd = stream()
    odd.method = "GET"
    for wrong, status in (
        (odd, Status.INTERNAL),
        (stream(te=""), Status.INTERNAL),
        (stream(grpc_encoding="snappy"), Status.UNIMPLEMENTED),
    ):
        with pytest.raises(GrpcError) as caught:
            grpc.read_call(wrong)
        assert caught.value.status == status


# --- Messages -----------------------------------------------------------------------------------


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


def test_messages_come_out_whole_however_they_are_cut() -> None:
    """Byte by byte and all at once."""
    body = framed(b"one") + framed(b"") + framed(gzip.compress(b"three", mtime=0), 1)
    for size in (1, 3, len(body)):
        reader = grpc.MessageReader("gzip", 100)
        found = []
        for at in range(0, len(body), size):
            found += reader.feed(body[at : at + size])
        reader.finish()
        assert found == [b"one", b"", b"three"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", Status.INVALID_ARGUMENT),
        (framed(b"a") + framed(b"b"), Status.UNIMPLEMENTED),
        (framed(b"a")[:-1], Status.INTERNAL),
        (b"\0\0", Status.INTERNAL),
        (framed(b"a", 2), Status.INTERNAL),
        (framed(b"a" * 101), Status.RESOURCE_EXHAUSTED),
        (struct.pack(">BI", 0, 2**32 - 1), Status.RESOURCE_EXHAUSTED),
        (framed(b"not gzip", 1), Status.INTERNAL),
        (framed(gzip.compress(b"a", mtime=0)[:-2], 1), Status.INTERNAL),
        (framed(gzip.compress(b"a", mtime=0) + b"more", 1), Status.INTERNAL),
        (framed(gzip.compress(b"a" * 10**6, mtime=0), 1), Status.RESOURCE_EXHAUSTED),
        (framed(gzip.compress(b"a" * 101, mtime=0), 1), Status.RESOURCE_EXHAUSTED),
    ],
)
def test_a_unary_call_has_one_message_within_its_bound(body: bytes, status: Status) -> None:
    """No fewer, no more, no larger, also when it unfolds."""
    with pytest.raises(GrpcError) as caught:
        grpc.read_message(body, "gzip", 2**14 if len(body) > 500 else 100)
    assert caught.value.status == status


def test_a_compressed_message_needs_a_compression() -> None:
    """What the head did not announce is not guessed."""
    with pytest.raises(GrpcError, match="without grpc-encoding"):
        grpc.read_message(framed(gzip.compress(b"a", mtime=0), 1), "identity", 100)


def test_a_message_is_written_as_it_is_read() -> None:
    """Plain and compressed."""
    for compress in (False, True):
        written = grpc.frame_message(b"message" * 10, compress=compress)
        assert written[0] == compress
        assert grpc.read_message(written, "gzip", 100) == b"message" * 10


# --- Metadata -----------------------------------------------------------------------------------


def test_metadata_is_what_is_not_the_protocols_own() -> None:
    """Names that end with -bin carry bytes, with or without padding, several in one field."""
    found = grpc.read_metadata(
        stream(grpc_timeout="1S", authorization="Bearer t", a_bin="AAE=, AAE", b_bin="", user="é")
    )
    assert found == [
        ("authorization", "Bearer t"),
        ("a-bin", b"\0\1"),
        ("a-bin", b"\0\1"),
        ("b-bin", b""),
        ("user", "é"),
    ]


def test_bytes_that_are_not_base64_are_refused() -> None:
    """The call, and not the service, is at fault."""
    with pytest.raises(GrpcError, match="base64"):
        grpc.read_metadata(stream(a_bin="A"))


def test_metadata_is_written_as_it_is_read() -> None:
    """And what could not be read again is refused."""
    fields = grpc.write_metadata([("a", "b c"), ("d-bin", b"\0\xff")])
    assert fields == [(b"a", b"b c"), (b"d-bin", b"AP8")]
    for name, value in (
        *(("A", "b"), ("a b", "c"), ("grpc-x", "y"), (":path", "/"), ("a", "é"), ("a", " b")),
        *(("a", "b\n"), ("a", b"bytes"), ("a-bin", "text")),
    ):
        with pytest.raises(ValueError, match=repr(name)):
            grpc.write_metadata([(name, value)])


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("plain text, with: signs", b"plain text, with: signs"),
        ("100% sure", b"100%25 sure"),
        ("two\nlines", b"two%0Alines"),
        ("é", b"%C3%A9"),
        (" a ", b"%20a%20"),
        (" ", b"%20"),
        ("\ud800", b"?"),
        ("", b""),
    ],
)
def test_texts_of_a_status_are_percent_encoded(text: str, encoded: bytes) -> None:
    """Whatever they are, they fit into a field."""
    assert grpc.percent_encode(text) == encoded


# --- Answers ------------------------------------------------------------------------------------


def answered(client: Talk) -> list[tuple[int, int, Any]]:
    """What goes out, with fields decoded."""
    decoder = Decoder()
    found: list[tuple[int, int, Any]] = []
    for kind, flags, _, payload in client.received():
        found.append(
            (kind, flags & END_STREAM, decoder.decode(payload) if kind == HEADERS else payload)
        )
    return found


HEAD = [
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity,gzip"),
]


def test_a_reply_is_a_head_a_message_and_a_status(protocol: Any) -> None:
    """Three frames, with what the server adds in the first and the last."""
    client = Talk(protocol)
    ((_, asked, _),) = client.send(call(1, b"hi"))
    assert grpc.reply(
        client.http2, asked, b"ho", metadata=[("a", "b")], trailing=[("c-bin", b"\0")]
    )
    assert answered(client) == [
        (HEADERS, 0, [*HEAD, (b"a", b"b")]),
        (DATA, 0, b"\0\0\0\0\2ho"),
        (HEADERS, 1, [(b"grpc-status", b"0"), (b"c-bin", b"AA")]),
    ]


def test_a_call_is_refused_with_a_head_alone(protocol: Any) -> None:
    """The status, its text and its details, percent-encoded and in base64."""
    client = Talk(protocol)
    ((_, asked, _),) = client.send(call(1))
    assert grpc.refuse(client.http2, asked, GrpcError(Status.NOT_FOUND, "no ü", b"\1\2"))
    status = [
        (b"grpc-status", b"5"),
        (b"grpc-message", b"no %C3%BC"),
        (b"grpc-status-details-bin", b"AQI"),
    ]
    assert answered(client) == [(HEADERS, 1, HEAD + status)]


def test_a_call_may_end_badly_after_messages(protocol: Any) -> None:
    """Then the status comes as trailers."""
    client = Talk(protocol)
    ((_, asked, _),) = client.send(call(1))
    assert grpc.send_message(client.http2, asked, b"1", compress=True)
    assert grpc.refuse(client.http2, asked, GrpcError(Status.ABORTED, "that is all"))
    head, data, trailers = answered(client)
    assert head[2] == [*HEAD, (b"grpc-encoding", b"gzip")]
    assert grpc.read_message(data[2], "gzip", 100) == b"1"
    status = [(b"grpc-status", b"10"), (b"grpc-message", b"that is all")]
    assert trailers == (HEADERS, 1, status)


def test_a_refusal_of_an_unfinished_call_tells_the_client_to_stop(protocol: Any) -> None:
    """Before its message is there."""
    client = Talk(protocol)
    client.send(request(1) + frame(DATA, 0, 1, b"x" * 20))
    (asked,) = client.http2.streams
    assert grpc.refuse(client.http2, asked, GrpcError(Status.UNAUTHENTICATED, "who?"))
    assert [kind for kind, *_ in client.received()] == [HEADERS, 3]
