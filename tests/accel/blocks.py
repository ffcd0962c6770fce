"""Random blocks of header fields, for the two HPACKs."""

from __future__ import annotations

import random

from penstock.service.http2 import _hpack

NAMES = [
    *(b":method", b":path", b":scheme", b":authority", b":status", b"host", b"te", b"cookie"),
    *(b"content-length", b"content-type", b"authorization", b"grpc-timeout", b"user-agent"),
    *(b"connection", b"x", b"X", b"", b"x-a", b"a b", b"a\x00", b"grpc-encoding", b"expect"),
    *(b"transfer-encoding", b"grpc-accept-encoding", b"x" * 40, b"keep-alive", b"upgrade"),
]


VALUES = [
    b"OPTIONS",
    *(b"POST", b"GET", b"CONNECT", b"post", b"/", b"/a.B/Unary", b"/a.B/Stream", b"/a.B/Batch"),
    *(b"/a?b=c", b"/%41", b"/%4", b"/#", b"*", b"", b"http", b"https", b"ftp", b"trailers"),
    *(b"application/grpc", b"application/grpc+proto", b"5", b"0", b"20", b"400", b"100000", b"+5"),
    *(b" a", b"a ", b"a b", b"\t", b"a\nb", b"a\x00b", b"\xff", b"identity", b"gzip", b"1S"),
    *(b"x" * 70, b"y" * 700, b"z" * 5000, b"100m", b"99999999H", b"1x", b"localhost"),
]


def integer(value: int, bits: int, flags: int) -> bytes:
    """A number in HPACK: in the low `bits` of a byte, or from there on in bytes of seven."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((flags | value,))
    out, value = [flags | most], value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def random_block(rng: random.Random) -> bytes:
    """Instructions that are mostly right."""
    out = bytearray()
    if rng.random() < 0.1:
        out += integer(rng.choice([0, 50, 100, 4096, 4097]), 5, 0x20)
    for _ in range(rng.randrange(8)):
        kind = rng.random()
        if kind < 0.4:
            out += integer(rng.randrange(1, 70), 7, 0x80)
            continue
        bits, flags = rng.choice([(6, 0x40), (4, 0), (4, 0x10)])
        index = rng.choice([0, 0, rng.randrange(1, 66)])
        out += integer(index, bits, flags)
        texts = [rng.choice(VALUES)] if index else [rng.choice(NAMES), rng.choice(VALUES)]
        for text in texts:
            if rng.random() < 0.5:
                coded = _hpack.encode_huffman(text)
                out += integer(len(coded), 7, 0x80) + coded
            else:
                out += integer(len(text), 7, 0) + text
    return bytes(out)


def mutated(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out))
        kind = rng.randrange(4)
        if kind == 0:
            out[at] = rng.randrange(256)
        elif kind == 1:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[at : at + rng.randrange(1, 5)]
            if not out:
                break
        else:
            out[at:at] = rng.randbytes(rng.randrange(1, 5))
    return bytes(out)
