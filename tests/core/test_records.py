"""Forecast and Outcome, the records beside Decision, behave as values."""

from __future__ import annotations

import copy
import pickle

import pytest

from penstock import Forecast, Outcome


def test_a_forecast_is_a_frozen_value() -> None:
    """Equal by its fields, hashable, shown by name, unpickled as itself, and never changed."""
    forecast = Forecast(3, 10, 20)
    assert forecast == Forecast(spendable_now=3, next_replenish_at=10, full_at=20)
    assert forecast != Forecast(3, 10, 21)
    assert forecast != (3, 10, 20)
    assert len({forecast, Forecast(3, 10, 20)}) == 1
    assert repr(forecast) == "Forecast(spendable_now=3, next_replenish_at=10, full_at=20)"
    assert pickle.loads(pickle.dumps(forecast)) == copy.deepcopy(forecast) == forecast
    match forecast:
        case Forecast(spendable, replenish, full):
            assert (spendable, replenish, full) == (3, 10, 20)
    with pytest.raises(AttributeError, match="frozen"):
        forecast.full_at = 5  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del forecast.full_at


def test_an_outcome_compares_and_shows_its_fields() -> None:
    """It is taken apart as it is read, and may be filled in: so it has no hash."""
    outcome = Outcome((1, 2), "yes", 5, True)
    assert outcome == Outcome(state=(1, 2), result="yes", ttl_ms=5, persist=True)
    assert outcome != Outcome((1, 2), "yes", 5, False)
    assert repr(outcome) == "Outcome(state=(1, 2), result='yes', ttl_ms=5, persist=True)"
    assert pickle.loads(pickle.dumps(outcome)) == outcome
    with pytest.raises(TypeError, match="unhashable"):
        hash(outcome)
    outcome.ttl_ms = 6
    match outcome:
        case Outcome(state, result, ttl_ms, persist):
            assert (state, result, ttl_ms, persist) == ((1, 2), "yes", 6, True)
