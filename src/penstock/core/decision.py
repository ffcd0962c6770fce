"""The three records that travel: Decision to the caller, Forecast to the curious, Outcome between
a strategy and a store.

A Decision is made on every check, so the compiled path has one of its own, with the same fields,
equality, hash, repr and pickling, kept as five machine words. A process uses one of the two
classes, never both: the last lines of this file choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from .native import native

__all__ = ["Decision", "Forecast", "Outcome", "Step", "decide"]

R_co = TypeVar("R_co", covariant=True)

_MAX_WORD = 2**63 - 1


class _Fields:
    """The fields of a Decision while they are still being filled in."""

    __slots__ = ("allowed", "limit", "remaining", "reset_at", "retry_after_ms")

    allowed: bool
    limit: int
    remaining: int
    reset_at: int
    retry_after_ms: int


class Decision(_Fields):
    """The answer to one request. `bool(decision)` is `decision.allowed`.

    `limit` is the ceiling (burst, capacity or window quota), `remaining` what is left of it,
    `reset_at` the instant (epoch ms) from which nothing of this is remembered, and
    `retry_after_ms` how long to wait before the same request is worth repeating: 0 exactly when
    allowed.
    """

    __slots__ = ()
    __match_args__ = ("allowed", "limit", "remaining", "reset_at", "retry_after_ms")

    def __new__(
        cls, allowed: bool, limit: int, remaining: int, reset_at: int, retry_after_ms: int
    ) -> Decision:
        for name, value in (
            ("limit", limit),
            ("remaining", remaining),
            ("reset_at", reset_at),
            ("retry_after_ms", retry_after_ms),
        ):
            # What the compiled one can hold.
            if not isinstance(value, int) or not -_MAX_WORD <= value <= _MAX_WORD:
                raise TypeError(
                    f"a Decision's {name} must be a whole number of 64 bits, not {value!r}"
                )
        return decide(bool(allowed), limit, remaining, reset_at, retry_after_ms)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Decision is frozen: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Decision is frozen: cannot delete {name!r}")

    def _tuple(self) -> tuple[bool, int, int, int, int]:
        return self.allowed, self.limit, self.remaining, self.reset_at, self.retry_after_ms

    def __bool__(self) -> bool:
        return self.allowed

    def __eq__(self, other: object) -> bool:
        if type(other) is not Decision:
            return NotImplemented
        return self._tuple() == other._tuple()

    def __hash__(self) -> int:
        return hash(self._tuple())

    def __repr__(self) -> str:
        return (
            f"Decision(allowed={self.allowed}, limit={self.limit}, remaining={self.remaining}, "
            f"reset_at={self.reset_at}, retry_after_ms={self.retry_after_ms})"
        )

    def __reduce__(self) -> tuple[Any, tuple[bool, int, int, int, int]]:
        return _rebuild, self._tuple()


def decide(
    allowed: bool, limit: int, remaining: int, reset_at: int, retry_after_ms: int
) -> Decision:
    """A Decision, for the strategies, which make one per check: a plain call is cheaper than
    that of a class. The fields are filled in as another class and frozen by changing it, which
    takes a quarter of the time that a frozen dataclass does."""
    decision = _Fields()
    decision.allowed = allowed
    decision.limit = limit
    decision.remaining = remaining
    decision.reset_at = reset_at
    decision.retry_after_ms = retry_after_ms
    decision.__class__ = Decision
    return decision  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a key can still spend, and when it gets more.

    `spendable_now` requests of the cost that was asked about fit at once. `next_replenish_at` is
    the instant (epoch ms) at which one more unit becomes available, now if nothing is missing, and
    `full_at` the one from which nothing is.
    """

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


Step: TypeAlias = tuple[Any, R_co, int, bool]
"""The fields of an Outcome, bare: see `core/strategy.py`."""


def _rebuild(*fields: Any) -> Decision:
    """Unpickles a Decision, in a process that may have the other class."""
    return Decision(*fields)


if native is not None and not TYPE_CHECKING:
    Decision = decide = native.Decision
    native.set_rebuild(_rebuild)
