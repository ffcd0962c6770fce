"""Deliberate faults, to show that the tester finds them.

Each is a small change to a strategy, an engine or a store, made by replacing one function for the
time of a run. They are applied where the interpreted code decides, so their scenarios run on a
store that has no accelerator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import Outcome, Store, leasing
from penstock.core import _charges, _steps
from penstock.core._limiter import Limiter
from penstock.leasing import _credits
from penstock.service import _several
from penstock.stores.memory import _store as _memory
from penstock.strategies._fixed_window import FixedWindow
from penstock.strategies._gcra import Gcra
from penstock.strategies._sliding_window_log import SlidingWindowLog
from penstock.strategies._slots import Slots
from penstock.strategies._token_bucket import TokenBucket
from tests.conformance.broken_stores import DictStore

from . import stores
from .drawing import DRAWN, limiter, two_tier
from .scenarios import Scenario

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A fault, and the kind of world in which it shows."""

    name: str
    kind: str
    apply: Patch
    store: str = "dict"
    strategy: str = ""
    """The kind of strategy that shows it, if it is one."""
    mode: str = ""
    """The mode of two tiers that shows it."""

    def draw(self, seed: int) -> Scenario:
        if self.mode:
            return two_tier(seed, self.store, self.strategy, self.mode)
        if self.strategy:
            return limiter(seed, self.store, self.strategy)
        return DRAWN[self.kind](seed, self.store)


def _around(owner: Any, name: str, change: Callable[..., Any]) -> Patch:
    """Replace a method by `change(original, self, ...)`."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)

        def changed(self: Any, *args: Any, **named: Any) -> Any:
            return change(original, self, *args, **named)

        monkeypatch.setattr(owner, name, changed)

    return patch


def _refunds_all(original: Any, self: Any, state: Any, now: int, cost: int, *rest: Any) -> Any:
    """As if the charge had been made a moment ago."""
    return original(self, state, now, cost, now, *rest[1:])


def _writes_denials(original: Any, self: Any, state: Any, now: int, cost: int) -> Any:
    outcome = original(self, state, now, cost)
    if outcome.result.allowed:
        return outcome
    more = original(self, None, now, 1)
    return Outcome(more.state, outcome.result, more.ttl_ms, True)


def _shows_one_more(original: Any, self: Any, state: Any, now: int) -> Any:
    shown = original(self, state, now)
    left = min(self.limit, shown.remaining + 1)
    return type(shown)(shown.allowed, shown.limit, left, shown.reset_at, shown.retry_after_ms)


def _ends_early(original: Any, self: Any, state: Any, now: int, until_ms: int) -> Any:
    return original(self, state, now, until_ms - (until_ms - now) // 2)


def _charges_twice(original: Any, self: Any, state: Any, now: int, cost: int) -> Any:
    return original(self, original(self, state, now, cost).state, now, cost)


def _one_too_many(original: Any, self: Any, state: Any, now: int, slot_id: str) -> Any:
    self.limit += 1
    try:
        return original(self, state, now, slot_id)
    finally:
        self.limit -= 1


def _denying_shadows(monkeypatch: pytest.MonkeyPatch) -> None:
    original = _steps.decide_all

    def decide_all(steps: Any, *rest: Any) -> Any:
        return original([step._replace(shadow=False) for step in steps], *rest)

    monkeypatch.setattr(_memory, "decide_all", decide_all)


def _settles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_charges.Charge, "_take", lambda self: self.allowed)


def _counts_by_figures(original: Any, self: Any, lead: str, name: str, limit: Any) -> str:
    return f"{original(self, lead, name, limit)}{limit.strategy.limit}"


def _never_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_credits.Denials, "forget", lambda self, key: None)


def _never_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limiter, "reset", lambda self, key: None)


def _carries_over(monkeypatch: pytest.MonkeyPatch) -> None:
    original = leasing.two_tier

    def two_tier(*args: Any, **named: Any) -> Any:
        return original(*args, **{**named, "window_coupled": False})

    monkeypatch.setattr(leasing, "two_tier", two_tier)


class _JumpyStore(DictStore):
    """Forgets a key whose clock goes back."""

    latest = 0

    def read(self, key: str, now: int) -> Any:
        back, self.latest = now < self.latest, max(now, self.latest)
        return None if back else super().read(key, now)


class _HastyStore(DictStore):
    """Forgets states after half of their time."""

    def write(self, key: str, outcome: Any, now: int) -> None:
        if outcome.persist:
            outcome = Outcome(outcome.state, outcome.result, outcome.ttl_ms // 2, True)
        super().write(key, outcome, now)


class _PartialStore(DictStore):
    """Keeps what the first limits have charged when a later one denies."""

    def apply_all(self, steps: Any, now: int) -> Any:
        told = [self.apply(step.key, step.transform, now, step.cost) for step in steps if step.cost]
        if len(told) < len(steps):
            return super().apply_all(steps, now)
        return told


def _on(store: Callable[[], Store]) -> Patch:
    return lambda monkeypatch: monkeypatch.setitem(stores.STORES, "dict", store)


def _of(name: str, strategy: type, method: str, change: Callable[..., Any]) -> Mutant:
    """A fault in one method of a strategy."""
    patch = _around(strategy, method, change)
    return Mutant(name, "limiter", patch, strategy=strategy.name)  # type: ignore[attr-defined]


MUTANTS = (
    _of("a refund ignores the age of its charge", Gcra, "refund", _refunds_all),
    _of("a refund of tokens ignores the age of its charge", TokenBucket, "refund", _refunds_all),
    _of("a denial is counted", FixedWindow, "check", _writes_denials),
    _of("a peek shows one more", SlidingWindowLog, "peek", _shows_one_more),
    _of("a pause ends early", Gcra, "pause", _ends_early),
    _of("a settlement charges twice", TokenBucket, "charge", _charges_twice),
    _of("one slot too many", Slots, "take", _one_too_many),
    Mutant("a charge settles twice", "limiter", _settles_again),
    Mutant("a reset forgets nothing", "limiter", _never_resets),
    Mutant("a clock that goes back finds a cold key", "limiter", _on(_JumpyStore)),
    Mutant("states are forgotten too early", "limiter", _on(_HastyStore)),
    Mutant("a denied request is charged in part", "limits", _on(_PartialStore)),
    Mutant("a shadow denies", "limits", _denying_shadows, "interpreted"),
    Mutant(
        "each plan has counts of its own",
        "service",
        _around(_several.PolicyLimits, "_lead_of", _counts_by_figures),
        "interpreted",
    ),
    Mutant("a node remembers denials that ended", "two_tier", _never_forgets, mode="cached-deny"),
    Mutant(
        "credits outlive their window",
        "two_tier",
        _carries_over,
        strategy="fixed_window",
        mode="leased",
    ),
)
