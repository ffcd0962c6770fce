"""Token budgets: admitted while less than the budget is served, then counted in full."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigInvalidError, Decision, ManualClock, rate_limit
from penstock.budget import TokenBudget, token_budget
from penstock.core._validation import MAX_SAFE
from tests.support.helpers import NOW, PATHS, make_limiter, make_store

WINDOW = 1_000
BASE = NOW // WINDOW * WINDOW

timelines = st.lists(
    st.tuples(st.integers(-2_500, 2_500), st.one_of(st.integers(1, 40), st.just(MAX_SAFE))),
    max_size=60,
)


def run(strategy: TokenBudget, steps: list[tuple[int, int]]) -> list[tuple[int, int, Decision]]:
    """Debits on a clock that moves by the given steps, backwards too, through a store's rules."""
    now, state, expires = BASE + 10_000, None, 0
    answers = []
    for move, tokens in steps:
        now += move
        outcome = strategy.check(state if now < expires else None, now, tokens)
        if outcome.persist:
            state, expires = outcome.state, now + outcome.ttl_ms
        answers.append((now, tokens, outcome.result))
    return answers


@given(st.integers(1, 100), timelines)
def test_only_the_debit_that_crosses_goes_over(budget: int, steps: list[Any]) -> None:
    """Before the last debit admitted in a window, less than the budget had been served."""
    windows: dict[int, list[int]] = {}
    for _, tokens, decision in run(token_budget(budget, WINDOW), steps):
        if decision.allowed:
            windows.setdefault(decision.reset_at, []).append(tokens)
    for debits in windows.values():
        assert sum(debits[:-1]) < budget


@given(st.integers(1, 100), timelines)
def test_a_clock_that_goes_back_opens_no_new_window(budget: int, steps: list[Any]) -> None:
    """Windows only ever move forward while one is remembered."""
    held = 0
    for now, _, decision in run(token_budget(budget, WINDOW), steps):
        if decision.allowed:
            assert decision.reset_at >= held or now >= held
            held = max(held, decision.reset_at)


@given(st.integers(1, 100), timelines)
def test_its_decisions_are_sound(budget: int, steps: list[Any]) -> None:
    """The promises that every decision keeps."""
    for now, _, decision in run(token_budget(budget, WINDOW), steps):
        assert decision.limit == budget
        assert 0 <= decision.remaining < budget
        assert decision.reset_at % WINDOW == 0
        assert decision.reset_at > now
        assert decision.retry_after_ms == (0 if decision.allowed else decision.reset_at - now)
        assert decision.allowed or decision.remaining == 0


def test_a_window_is_spent_by_the_debit_that_crosses() -> None:
    """The rule, step by step."""
    clock = ManualClock(BASE)
    budget = rate_limit(token_budget(100, WINDOW), clock=clock)
    assert budget.check("k", 60) == Decision(True, 100, 40, BASE + WINDOW, 0)
    assert budget.check("k", 60) == Decision(True, 100, 0, BASE + WINDOW, 0)
    assert budget.check("k", 1) == Decision(False, 100, 0, BASE + WINDOW, WINDOW)
    clock.advance(WINDOW - 1)
    assert budget.check("k", 1) == Decision(False, 100, 0, BASE + WINDOW, 1)
    clock.advance(1)
    assert budget.check("k", 1) == Decision(True, 100, 99, BASE + 2 * WINDOW, 0)


def test_a_denied_debit_writes_nothing() -> None:
    """The oracle itself says so."""
    spent = (BASE, 100)
    outcome = token_budget(100, WINDOW).check(spent, BASE, 5)
    assert not outcome.persist
    assert outcome.state == spent


@given(st.integers(1, 1_000), st.integers(0, 1_500), st.integers(1, 300))
def test_peek_and_forecast_foretell_the_debits(budget: int, served: int, tokens: int) -> None:
    """As many debits are admitted as were forecast, and peek knows about the next."""
    strategy = token_budget(budget, WINDOW)
    state: Any = (BASE, served) if served else None
    forecast = strategy.forecast(state, BASE, tokens)
    assert strategy.peek(state, BASE).allowed == (forecast.spendable_now > 0)
    assert strategy.peek(state, BASE).remaining == max(0, budget - served)
    for _ in range(forecast.spendable_now):
        outcome = strategy.check(state, BASE, tokens)
        assert outcome.result.allowed
        state = outcome.state
    assert not strategy.check(state, BASE, tokens).result.allowed
    assert forecast.full_at == (BASE + WINDOW if served else BASE)


@given(st.integers(1, 100), st.integers(1, 200), st.integers(0, WINDOW - 1), st.integers(0, 5_000))
def test_state_past_its_ttl_decides_like_no_state(
    budget: int, tokens: int, offset: int, later: int
) -> None:
    """What is forgotten on time changes nothing."""
    strategy = token_budget(budget, WINDOW)
    outcome = strategy.check(None, BASE + offset, tokens)
    then = BASE + offset + outcome.ttl_ms + later
    assert strategy.check(outcome.state, then, 1).result == strategy.check(None, then, 1).result


@pytest.mark.parametrize("path", PATHS)
def test_threads_cannot_overspend_it(path: str) -> None:
    """Of many debits at once exactly those are admitted that one after the other would be."""
    limiter = make_limiter(path, token_budget(1_000, WINDOW), ManualClock(BASE))
    admitted: list[int] = []
    gate = threading.Barrier(8)

    def spend() -> None:
        gate.wait()
        mine = sum(bool(limiter.check("k", 3)) for _ in range(100))
        admitted.append(mine)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 334  # 333 make 999, one more crosses


@pytest.mark.parametrize("path", PATHS)
def test_max_keys_bounds_how_many_budgets_are_remembered(path: str) -> None:
    """A store that denies when it is full refuses a new key's debit."""
    store = make_store(path, max_keys=2, overflow="deny")
    limiter = make_limiter(path, token_budget(10, WINDOW), ManualClock(BASE), store)
    assert limiter.check("a", 20)
    assert limiter.check("b")
    assert not limiter.check("c")
    assert not limiter.check("a")


@pytest.mark.parametrize(
    ("budget", "window_ms"),
    [(0, 1), (-1, 1), (1.5, 1), (True, 1), (1, 0), (1, 2**43), ("1", 1), (2**53, 1)],
)
def test_impossible_budgets_are_refused(budget: Any, window_ms: Any) -> None:
    """At construction, before any key is asked."""
    with pytest.raises(ConfigInvalidError, match="must be an integer"):
        token_budget(budget, window_ms)
