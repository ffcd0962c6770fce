"""The interpreted wheel by itself, against a sorted list."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.stores.memory._eviction import Timed, Wheel


class Item:
    """Something that expires."""

    def __init__(self, expires: int) -> None:
        self.expires = expires
        self.slot: dict[str, Timed] = {}


@given(
    start=st.integers(0, 2**42),
    distances=st.lists(st.integers(-10, 2**34), max_size=40),
    moves=st.lists(st.integers(0, 2**26), max_size=30),
)
def test_every_key_is_handed_out_once_and_on_time(
    start: int, distances: list[int], moves: list[int]
) -> None:
    """At each advance exactly the keys that are due by then, however far the hand moved."""
    wheel = Wheel()
    wheel.advance(start)
    waiting = {}
    for number, distance in enumerate(distances):
        waiting[str(number)] = Item(max(0, start + distance))
        wheel.file(str(number), waiting[str(number)])
    now = start
    for move in [*moves, 2**35]:
        now += move
        if move == 0:
            continue
        due = {key for key, item in waiting.items() if item.expires <= now}
        handed = wheel.advance(now)
        assert len(handed) == len(set(handed))
        assert set(handed) == due
        for key in due:
            del waiting[key]
    assert not waiting


def test_next_due_never_names_an_instant_too_late() -> None:
    """Whatever is filed, nothing is due before the instant that is named."""
    rng = random.Random("next due")
    for _ in range(200):
        wheel, now = Wheel(), 1_700_000_000_000 + rng.randrange(2**32)
        wheel.advance(now)
        expiries = [now + rng.randrange(1, 2 ** rng.randrange(1, 31)) for _ in range(5)]
        for number, expires in enumerate(expiries):
            wheel.file(str(number), Item(expires))
        while expiries:
            soonest = wheel.next_due()
            assert wheel.now < soonest <= min(expiries)
            wheel.advance(soonest)
            expiries = [expires for expires in expiries if expires > soonest]


def test_a_renewed_key_is_found_alive_and_filed_again() -> None:
    """Renewal does not touch the wheel; the old slot only looks and passes on."""
    wheel, item = Wheel(), Item(1_000)
    wheel.file("k", item)
    item.expires = 500_000
    assert wheel.advance(1_000) == []
    assert wheel.advance(499_999) == []
    assert wheel.advance(500_000) == ["k"]


def test_an_emptied_slot_keeps_no_memory() -> None:
    """A slot that once held many keys is as small as new."""
    import sys

    wheel = Wheel()
    items = [Item(200) for _ in range(5_000)]
    for number, item in enumerate(items):
        wheel.file(str(number), item)
    slot = items[0].slot
    assert sys.getsizeof(slot) > 100_000
    assert len(wheel.advance(200)) == 5_000
    assert sys.getsizeof(slot) < 1_000
