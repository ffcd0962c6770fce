"""The laws of the ceiling."""

from __future__ import annotations

from math import isclose, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigInvalidError
from penstock.concurrency import Aimd, Gradient, Law
from penstock.concurrency._ceilings import Ceiling, SlidingMinimum

LAWS: list[Law] = [Gradient(2, 50), Gradient(1, 8, smoothing=1.0), Aimd(2, 50), Aimd(3, 3)]

events = st.lists(
    st.tuples(st.sampled_from(("sample", "drop")), st.integers(0, 5_000), st.integers(1, 60)),
    max_size=80,
)


@given(st.sampled_from(LAWS), events)
def test_the_ceiling_stays_within_its_bounds(law: Law, happened: list[Any]) -> None:
    """Whatever happens, in whatever order."""
    ceiling = Ceiling(law)
    for what, rtt_ms, in_flight in happened:
        if what == "sample":
            ceiling.sample(rtt_ms, in_flight)
        else:
            ceiling.drop()
        assert law.min_limit <= ceiling.limit <= law.max_limit


@given(st.integers(1, 100), events)
def test_equal_bounds_pin_the_ceiling(pin: int, happened: list[Any]) -> None:
    """The adaptive limiter is then a plain one."""
    ceiling = Ceiling(Gradient(pin, pin))
    for what, rtt_ms, in_flight in happened:
        ceiling.sample(rtt_ms, in_flight) if what == "sample" else ceiling.drop()
        assert ceiling.limit == pin


@given(st.lists(st.integers(0, 50), max_size=200), st.integers(1, 20))
def test_the_sliding_minimum_is_the_least_of_the_last(values: list[int], size: int) -> None:
    """As the definition says, computed the slow way."""
    window = SlidingMinimum(size)
    for at, value in enumerate(values):
        assert window.add(value) == min(values[max(0, at + 1 - size) : at + 1])


@pytest.mark.parametrize(("rtt_ms", "gradient"), [(10, 1.0), (20, 1.0), (30, 2 / 3), (400, 0.5)])
def test_the_gradient_law_is_the_formula(rtt_ms: int, gradient: float) -> None:
    """limit * clamp(tolerance * noload / rtt, 0.5, 1) + sqrt(limit), a fifth of the way."""
    law = Gradient(1, 1_000, tolerance=2.0, smoothing=0.2)
    expected = 100 + 0.2 * (100 * gradient + sqrt(100) - 100)
    assert isclose(law.sampled(100.0, rtt_ms, 10, pressed=True), expected)


def test_the_ceiling_grows_only_while_it_is_pressed() -> None:
    """Short round trips of an idle system say nothing about what it could take."""
    for law in (Gradient(1, 1_000), Aimd(1, 1_000)):
        assert law.sampled(100.0, 10, 10, pressed=False) == 100.0
        assert law.sampled(100.0, 10, 10, pressed=True) > 100.0


def test_stretched_round_trips_shrink_the_ceiling_pressed_or_not() -> None:
    """A backend that slows down is believed at once."""
    for law in (Gradient(1, 1_000), Aimd(1, 1_000, timeout_ms=50)):
        for pressed in (False, True):
            assert law.sampled(100.0, 100, 10, pressed) < 100.0


def test_a_drop_contracts_the_ceiling() -> None:
    """By the factor that the law names."""
    assert Gradient(1, 1_000, backoff=0.5).dropped(100.0) == 50.0
    assert Aimd(1, 1_000, backoff=0.9).dropped(100.0) == 90.0
    assert Aimd(95, 1_000, backoff=0.9).dropped(100.0) == 95.0


def test_aimd_adds_one_and_takes_a_tenth() -> None:
    """The alternative law in two lines."""
    law = Aimd(1, 1_000, timeout_ms=100)
    assert law.sampled(10.0, 100, 0, pressed=True) == 11.0
    assert law.sampled(10.0, 101, 0, pressed=True) == 9.0


def test_the_gradient_finds_a_backends_capacity() -> None:
    """A backend that serves 40 at once and queues the rest settles the ceiling around that, as
    long as there is a quiet moment now and then."""
    ceiling = Ceiling(Gradient(1, 1_000, tolerance=1.5, samples=500))
    for step in range(5_000):
        in_flight = 5 if step % 400 == 0 else ceiling.limit
        ceiling.sample(max(10, 10 * in_flight // 40), in_flight)
    assert 40 <= ceiling.limit <= 100


def test_it_starts_at_twenty_or_as_told() -> None:
    """Within the bounds."""
    assert Ceiling(Gradient(1, 100)).limit == 20
    assert Ceiling(Gradient(1, 5)).limit == 5
    assert Ceiling(Gradient(30, 100)).limit == 30
    assert Ceiling(Gradient(1, 100, initial_limit=7)).limit == 7


@pytest.mark.parametrize(
    "options",
    [
        {"min_limit": 0},
        {"max_limit": 0},
        {"min_limit": 5, "max_limit": 4},
        {"initial_limit": 5_000},
        {"tolerance": 0.5},
        {"tolerance": float("nan")},
        {"smoothing": 0.0},
        {"smoothing": True},
        {"backoff": 1.5},
        {"samples": 0},
    ],
)
def test_impossible_laws_are_refused(options: dict[str, Any]) -> None:
    """At construction."""
    with pytest.raises(ConfigInvalidError):
        Gradient(**options)
