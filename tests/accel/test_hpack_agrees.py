"""The compiled HPACK and the interpreted one: the same bytes, fields and refusals."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.service.http2 import _hpack
from tests.accel.blocks import NAMES, VALUES, mutated, random_block

compiled: Any = pytest.importorskip("penstock.accel._http2")


def outcome(work: Callable[..., Any], *args: Any) -> Any:
    try:
        return work(*args)
    except (_hpack.HpackError, compiled.HpackError) as error:
        return f"error: {error}"


def test_blocks_are_decoded_alike() -> None:
    """Right ones and mutated ones, one after the other on one connection."""
    rng = random.Random("hpack/decode")
    for _ in range(600):
        bounds = (rng.choice([200, 16_384]), rng.choice([3, 128]), rng.choice([100, 4096]))
        plain, fast = _hpack.Decoder(*bounds), compiled.Decoder(*bounds)
        for _ in range(rng.randrange(1, 12)):
            block = random_block(rng)
            if rng.random() < 0.2:
                block = mutated(block, rng)
            expected = outcome(plain.decode, block)
            assert outcome(fast.decode, block) == expected
            assert (fast.table_size, fast.truncated) == (plain.table_size, plain.truncated)
            if isinstance(expected, str):
                break


def test_huffman_agrees() -> None:
    """Both ways, on text, on noise, and on what is no code."""
    rng = random.Random("hpack/huffman")
    for _ in range(2_000):
        text = rng.randbytes(rng.randrange(40)) if rng.random() < 0.5 else rng.choice(VALUES)
        coded = _hpack.encode_huffman(text)
        assert compiled.encode_huffman(text) == coded
        assert _hpack.decode_huffman(coded) == compiled.decode_huffman(coded) == text
        noise = mutated(coded, rng)
        assert outcome(compiled.decode_huffman, noise) == outcome(_hpack.decode_huffman, noise)


def test_blocks_are_encoded_alike() -> None:
    """Prepared once, sent often, with changes of the table's size in between."""
    rng = random.Random("hpack/encode")
    pairs = [(name, value) for name in NAMES[:12] for value in VALUES]
    for _ in range(100):
        blocks = [
            (rng.sample(pairs, rng.randrange(4)), rng.sample(pairs, rng.randrange(3)))
            for _ in range(4)
        ]
        plain, fast = _hpack.Encoder(), compiled.Encoder()
        peer = _hpack.Decoder(2**20, 1_000)
        for _ in range(rng.randrange(1, 20)):
            if rng.random() < 0.2:
                for _ in range(rng.randrange(1, 4)):
                    size = rng.choice([0, 40, 100, 200, 4096, 10_000])
                    plain.resize(size)
                    fast.resize(size)
            repeated, others = rng.choice(blocks)
            block = _hpack.HeaderBlock(repeated, others)
            written = plain.encode(block)
            assert fast.encode(block) == written
            assert peer.decode(written) == [*repeated, *others]
