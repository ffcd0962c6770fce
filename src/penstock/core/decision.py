"""The three records that travel: Decision to the caller, Forecast to the curious, Outcome between
a strategy and a store.

A Decision is made on every check, so the compiled path has one of its own, with the same fields,
equality, hash, repr and pickling, kept as five machine words. A process uses one of the two
classes, never both: the last lines of this file choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .native import native

__all__ = ["Decision", "Forecast", "Outcome"]

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request. `bool(decision)` is `decision.allowed`.

    `limit` is the ceiling (burst, capacity or window quota), `remaining` what is left of it,
    `reset_at` the instant (epoch ms) from which nothing of this is remembered, and
    `retry_after_ms` how long to wait before the same request is worth repeating: 0 exactly when
    allowed.
    """

    allowed: bool
    limit: int
    remaining: int
    reset_at: int
    retry_after_ms: int

    def __bool__(self) -> bool:
        return self.allowed


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a key can still spend, and when it gets more. Instants are epoch ms."""

    spendable_now: int
    next_replenish_at: int
    full_at: int


@dataclass(slots=True)
class Outcome(Generic[R_co]):
    """What a transition yields and what a store applies.

    The store writes `state`, to be forgotten `ttl_ms` after the instant of the transition, if and
    only if `persist`; a `state` of None with `persist` deletes the key. It returns `result`.
    """

    state: Any
    result: R_co
    ttl_ms: int
    persist: bool


def _rebuild(*fields: Any) -> Decision:
    """Unpickles a Decision, in a process that may have the other class."""
    return Decision(*fields)


if native is not None and not TYPE_CHECKING:
    Decision = native.Decision
    native.set_rebuild(_rebuild)
