"""The algebra of decisions, as laws."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock import Decision
from penstock.core._decision import NEUTRAL
from penstock.core._validation import MAX_INSTANT_MS, MAX_SAFE, MAX_SPAN_MS
from penstock.core._verdict import combine


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    """Any decision that a strategy may make."""
    allowed = draw(st.booleans())
    limit = draw(st.integers(1, MAX_SAFE))
    remaining = draw(st.integers(0, limit))
    reset_at = draw(st.integers(0, MAX_INSTANT_MS))
    return Decision(
        allowed, limit, remaining, reset_at, 0 if allowed else draw(st.integers(1, MAX_SPAN_MS))
    )


@given(decisions())
def test_the_neutral_decision_changes_nothing(a: Decision) -> None:
    """Identity, from both sides."""
    assert combine(a, NEUTRAL) == combine(NEUTRAL, a) == a


@given(decisions(), decisions(), decisions())
def test_grouping_does_not_matter(a: Decision, b: Decision, c: Decision) -> None:
    """Associativity, and the form with many arguments says the same."""
    assert combine(combine(a, b), c) == combine(a, combine(b, c)) == combine(a, b, c)


@given(decisions(), decisions())
def test_order_does_not_matter(a: Decision, b: Decision) -> None:
    """Commutativity."""
    assert combine(a, b) == combine(b, a)


@given(decisions())
def test_repetition_does_not_matter(a: Decision) -> None:
    """Idempotence."""
    assert combine(a, a) == combine(a) == a


@given(st.lists(decisions(), max_size=5))
def test_the_whole_is_a_sound_decision(parts: list[Decision]) -> None:
    """Allowed is all allowed, and the wait is 0 exactly then."""
    whole = combine(*parts)
    assert whole.allowed == all(part.allowed for part in parts)
    assert (whole.retry_after_ms == 0) == whole.allowed
    assert all(whole.remaining <= part.remaining for part in parts)
    assert all(whole.reset_at >= part.reset_at for part in parts)


def test_no_decisions_combine_to_the_neutral_one() -> None:
    """The empty case is the identity, as it has to be."""
    assert combine() == NEUTRAL
