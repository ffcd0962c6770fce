"""Fields of HTTP/2: read and written as the RFC and an independent library do it."""

from __future__ import annotations

import random
from typing import Any

import hpack as peer
import pytest
from hpack.struct import HeaderTuple

from penstock.service.http2._hpack import STATIC_TABLE, HeaderBlock

REQUESTS = [
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":path", b"/"),
    (b":authority", b"www.example.com"),
]
CACHED = [*REQUESTS, (b"cache-control", b"no-cache")]
CUSTOM = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]
# RFC 7541, appendix C: three requests on one connection, spelled out and Huffman coded.
EXAMPLES = {
    "C.3": (
        "828684410f7777772e6578616d706c652e636f6d",
        "828684be58086e6f2d6361636865",
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    ),
    "C.4": (
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    ),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_requests_of_the_rfc_are_read(protocol: Any, example: str) -> None:
    """Three in a row: the later ones refer to what the earlier ones left in the table."""
    decoder = protocol.Decoder()
    for block, expected in zip(EXAMPLES[example], (REQUESTS, CACHED, CUSTOM), strict=True):
        assert decoder.decode(bytes.fromhex(block)) == expected
    assert decoder.table_size == 164


def test_the_responses_of_the_rfc_are_read_with_evictions(protocol: Any) -> None:
    """C.5: a table of 256 bytes, in which the third response leaves only its own fields."""
    decoder = protocol.Decoder(16_384, 128, 256)
    blocks = [
        "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
        "6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
        "4803333037c1c0bf",
        "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f"
        "3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076"
        "657273696f6e3d31",
    ]
    lists = [decoder.decode(bytes.fromhex(block)) for block in blocks]
    assert [fields[0] for fields in lists] == [
        (b":status", b"302"),
        (b":status", b"307"),
        (b":status", b"200"),
    ]
    assert lists[1][1:] == lists[0][1:]
    assert lists[2][-1][1] == b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
    assert decoder.table_size == 215


def random_fields(rng: random.Random) -> list[tuple[bytes, bytes]]:
    names = [b"x-a", b"content-type", b":path", b"te", b"grpc-timeout", b"n" * 50]
    chosen = []
    for _ in range(rng.randrange(12)):
        if rng.random() < 0.3:
            chosen.append(rng.choice(STATIC_TABLE))
        else:
            value = rng.choice([b"", b"trailers", rng.randbytes(5), b"v" * rng.randrange(600)])
            chosen.append((rng.choice(names), value))
    return chosen


def test_what_another_library_writes_is_read(protocol: Any) -> None:
    """Its encoder remembers all it can, changes the size of its table, and uses Huffman or not."""
    rng = random.Random("peer writes")
    for _ in range(30):
        encoder = peer.Encoder()
        decoder = protocol.Decoder(2**20, 1_000)
        for _ in range(20):
            if rng.random() < 0.1:
                encoder.header_table_size = rng.choice([0, 100, 1_000, 4_096])
            fields = random_fields(rng)
            block = encoder.encode(fields, huffman=rng.random() < 0.5)
            assert decoder.decode(block) == fields


def test_another_library_reads_what_is_written(protocol: Any) -> None:
    """Also after its settings have changed the size of the table, more than once at a time."""
    rng = random.Random("peer reads")
    for _ in range(30):
        encoder = protocol.Encoder()
        decoder = peer.Decoder(2**24)
        for _ in range(20):
            if rng.random() < 0.2:
                for _ in range(rng.randrange(1, 3)):
                    size = rng.choice([0, 60, 200, 4_096, 8_192])
                    decoder.max_allowed_table_size = size
                    encoder.resize(size)
            repeated, others = random_fields(rng), random_fields(rng)
            found = decoder.decode(encoder.encode(HeaderBlock(repeated, others)), raw=True)
            assert found == [HeaderTuple(*pair) for pair in repeated + others]


def test_a_repeated_field_is_one_byte_from_its_second_use_on(protocol: Any) -> None:
    """What an answer costs after the first one on a connection."""
    encoder = protocol.Encoder()
    block = HeaderBlock([(b":status", b"200"), (b"content-type", b"application/grpc")])
    assert len(encoder.encode(block)) > 10
    assert len(encoder.encode(block)) == 2


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("80", "neither table"),
        ("be", "neither table"),
        ("ff80808080808001", "too large"),
        ("ffffffffff7f", "too large"),
        ("ff", "within an integer"),
        ("40", "before a string"),
        ("4003", "within a string"),
        ("400161", "before a string"),
        ("3fe21f", "larger than was announced"),
        ("202020", "more than two"),
        ("8220", "behind a field"),
        ("008161008100", "fewer than 8 ones"),
        ("0001618400ffffff", "fewer than 8 ones"),
        ("00016184ffffffff", "fewer than 8 ones"),
        ("000161821fff", "fewer than 8 ones"),
    ],
)
def test_what_is_no_block_is_refused(protocol: Any, block: str, text: str) -> None:
    """Indices, integers, strings, sizes and paddings that are not there or not right."""
    with pytest.raises(protocol.HpackError, match=text):
        protocol.Decoder().decode(bytes.fromhex(block))


def test_a_list_is_bounded_while_it_unfolds_and_the_table_stays_right(protocol: Any) -> None:
    """One byte each refers to a field of 4,000: nothing beyond the bound is kept."""
    decoder = protocol.Decoder(16_384)
    big = b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4_000
    assert len(decoder.decode(big)) == 1
    assert not decoder.truncated
    fields = decoder.decode(b"\xbe" * 500)
    assert len(fields) == 4
    assert decoder.truncated
    assert decoder.decode(b"\x40\x01c\x01d\x82") == [(b"c", b"d"), (b":method", b"GET")]
    assert not decoder.truncated


def test_the_number_of_fields_is_bounded(protocol: Any) -> None:
    """Whatever room their text would have; of far too many, not even the rest is followed."""
    decoder = protocol.Decoder(2**20, 10)
    assert len(decoder.decode(b"\x82" * 11)) == 10
    assert decoder.truncated
    assert len(decoder.decode(b"\x82" * 40)) == 10
    with pytest.raises(protocol.HpackError, match="too many"):
        decoder.decode(b"\x82" * 41)


def test_a_field_larger_than_the_table_empties_it(protocol: Any) -> None:
    """And is a field like any other (section 4.4)."""
    decoder = protocol.Decoder(16_384, 128, 100)
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.table_size == 34
    assert decoder.decode(b"\x40\x01a\x64" + b"b" * 100) == [(b"a", b"b" * 100)]
    assert decoder.table_size == 0


def test_a_name_may_come_from_the_field_that_it_drives_out(protocol: Any) -> None:
    """The new one is made before the old one goes."""
    decoder = protocol.Decoder(16_384, 128, 100)
    decoder.decode(b"\x40\x20" + b"n" * 32 + b"\x10" + b"v" * 16)
    assert decoder.decode(b"\x7e\x14" + b"w" * 20) == [(b"n" * 32, b"w" * 20)]


def test_every_symbol_survives_huffman(protocol: Any) -> None:
    """All bytes, one by one and together, as another library codes them."""
    from hpack.huffman import HuffmanEncoder
    from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

    other = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
    for text in [*(bytes((symbol,)) for symbol in range(256)), bytes(range(256)), b""]:
        coded = protocol.encode_huffman(text)
        assert coded == other.encode(text)
        assert protocol.decode_huffman(coded) == text
