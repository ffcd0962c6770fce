"""What is remembered of a key does not depend on how long somebody made it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from itertools import count

import pytest

from penstock import Decision
from penstock.concurrency import ConcurrencyLimiter
from penstock.core._validation import LONGEST_KEPT, kept_key
from penstock.leasing import AdaptiveBatch
from penstock.leasing._batch import Demand
from penstock.leasing._credits import Denials

DENIED = Decision(False, 5, 0, 10**12, 60_000)


def denials() -> Callable[[str], object]:
    held = Denials(10_000, 60_000, count(1))
    return lambda key: held.remember(key, 1, 5, 1, DENIED)


def batches() -> Callable[[str], object]:
    batch = AdaptiveBatch()
    return lambda key: batch.observe(key, 5, 5)


def demand() -> Callable[[str], object]:
    spent = Demand(AdaptiveBatch(max_keys=1), 10_000)
    return lambda key: spent.leased(key, 5, 1, 5)


def slots() -> Callable[[str], object]:
    return ConcurrencyLimiter(per_key=True).admit


@pytest.mark.parametrize("memory", [denials, batches, demand, slots])
def test_a_long_key_is_remembered_in_little(memory: Callable[[], Callable[[str], object]]) -> None:
    """4,096 bytes with one emoji are 16 KB to Python."""
    remember = memory()
    remember("\U0001f600" + "x" * 4_092)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(500):
            remember(f"\U0001f600{number:04092d}")
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 500 * 3_000


def test_what_stands_for_a_key_is_no_other_keys() -> None:
    """A short key stands for itself, a long one is told from every other."""
    for key in ("k", "ü" * LONGEST_KEPT):
        assert kept_key(key) is key
    long = ["x" * 500, "x" * 501, "x" * 499 + "y"]
    assert len({kept_key(key) for key in long}) == 3
    for key in long:
        kept = kept_key(key)
        assert kept == kept_key("".join([*key]))
        assert isinstance(kept, bytes)
        with pytest.raises(UnicodeDecodeError):
            kept.decode()


def test_denials_batches_and_slots_of_long_keys_are_found_again() -> None:
    """By the key they were remembered for, and by no other."""
    key, other = "x" * 500, "x" * 501
    held = Denials(10, 60_000, count(1))
    held.remember(key, 1, 5, 1, DENIED)
    assert held.recall(key, 1, 6) is not None
    assert held.recall(other, 1, 6) is None
    held.forget(key)
    assert held.recall(key, 1, 6) is None
    batch = AdaptiveBatch()
    batch.observe(key, 1_000, 5)
    assert batch.size(key) > batch.size(other)
    limiter = ConcurrencyLimiter(per_key=True)
    lease = limiter.admit(key).lease
    assert lease is not None
    assert limiter.in_flight == 1
    assert limiter.release(lease.id)
    assert limiter.in_flight == 0
