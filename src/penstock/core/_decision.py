"""The result types: Decision and Forecast for the caller, Outcome from a strategy to a store.

A Decision is made on every check, so the compiled path has a class of its own, with the same
fields, equality, hash, repr and pickling, kept as five machine words. A process uses only one of
the two classes; the last lines of this file choose it.

A decision of a fail mode, made while the store was away, is of a subclass of its own: it has the
five fields, and says by which mode it was made. So all other decisions carry nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from . import native
from ._validation import MAX_SAFE

__all__ = [
    "NEUTRAL",
    "RETRY_MS",
    "Booking",
    "Charged",
    "Decision",
    "DegradedDecision",
    "DegradedForecast",
    "Forecast",
    "Outcome",
]


R_co = TypeVar("R_co", covariant=True)

_MAX_WORD = 2**63 - 1

RETRY_MS = 1_000
"""When it is worth asking again after a decision of a fail mode."""


class Decision:
    """The answer to one request. `bool(decision)` is `decision.allowed`."""

    __match_args__ = ("allowed", "limit", "remaining", "reset_at", "retry_after_ms")
    __slots__ = ("_allowed", "_limit", "_remaining", "_reset_at", "_retry_after_ms")

    _allowed: bool
    _limit: int
    _remaining: int
    _reset_at: int
    _retry_after_ms: int

    def __new__(
        cls, allowed: bool, limit: int, remaining: int, reset_at: int, retry_after_ms: int
    ) -> Decision:
        # Accepts what the compiled class can hold. One test for all: the bitwise or of integers is
        # negative if one of them is, and too large if one of them is.
        try:
            union = limit | remaining | reset_at | retry_after_ms
        except TypeError:
            union = -1
        if type(union) is not int or not 0 <= union <= _MAX_WORD:
            _require_words(limit, remaining, reset_at, retry_after_ms)
        self = object.__new__(cls)
        self._allowed = True if allowed else False  # noqa: SIM210 - a call less than bool()
        self._limit = limit
        self._remaining = remaining
        self._reset_at = reset_at
        self._retry_after_ms = retry_after_ms
        return self

    # Properties make the fields read-only, while the constructor assigns them directly.
    @property
    def allowed(self) -> bool:
        """Whether the request may go on."""
        return self._allowed

    @property
    def limit(self) -> int:
        """The ceiling: burst, capacity or window quota."""
        return self._limit

    @property
    def remaining(self) -> int:
        """What is left of the limit."""
        return self._remaining

    @property
    def reset_at(self) -> int:
        """The instant (epoch ms) from which nothing counts against the key any more, if there are
        no further requests."""
        return self._reset_at

    @property
    def retry_after_ms(self) -> int:
        """How long to wait before the same request can be admitted; 0 exactly when allowed."""
        return self._retry_after_ms

    @property
    def degraded(self) -> str | None:
        """The fail mode that decided while the store was away, such as "open" or "closed"; None if
        the limit was asked."""
        return None

    def _tuple(self) -> tuple[bool, int, int, int, int]:
        return self._allowed, self._limit, self._remaining, self._reset_at, self._retry_after_ms

    def __bool__(self) -> bool:
        return self._allowed

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


def _require_words(*numbers: Any) -> None:
    for name, value in zip(Decision.__match_args__[1:], numbers, strict=True):
        if not isinstance(value, int) or not -_MAX_WORD <= value <= _MAX_WORD:
            raise TypeError(f"a Decision's {name} must be a whole number of 64 bits, not {value!r}")


class Forecast:
    """What a key can still spend, and when it gets more.

    `spendable_now` is how many requests of the given cost would be admitted now.
    `next_replenish_at` is the instant (epoch ms) at which one more unit becomes available, and
    `full_at` the one at which all are; both are now if nothing has been spent.
    """

    __slots__ = __match_args__ = ("spendable_now", "next_replenish_at", "full_at")

    spendable_now: int
    next_replenish_at: int
    full_at: int

    @property
    def degraded(self) -> str | None:
        """The fail mode that made it while the store was away; None if the limit was asked."""
        return None

    def __init__(self, spendable_now: int, next_replenish_at: int, full_at: int) -> None:
        fill = object.__setattr__
        fill(self, "spendable_now", spendable_now)
        fill(self, "next_replenish_at", next_replenish_at)
        fill(self, "full_at", full_at)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Forecast is frozen: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Forecast is frozen: cannot delete {name!r}")

    def _tuple(self) -> tuple[int, int, int]:
        return self.spendable_now, self.next_replenish_at, self.full_at

    def __eq__(self, other: object) -> bool:
        if type(other) is not Forecast:
            return NotImplemented
        return self._tuple() == other._tuple()

    def __hash__(self) -> int:
        return hash(self._tuple())

    def __repr__(self) -> str:
        return (
            f"Forecast(spendable_now={self.spendable_now}, "
            f"next_replenish_at={self.next_replenish_at}, full_at={self.full_at})"
        )

    def __reduce__(self) -> tuple[type[Forecast], tuple[int, int, int]]:
        return Forecast, self._tuple()


class Outcome(Generic[R_co]):
    """What a transition of a strategy returns, and a store applies.

    If `persist`, the store writes `state`, which expires `ttl_ms` after the instant of the
    transition; a `state` of None deletes the key. Otherwise it writes nothing. The caller gets
    `result`.
    """

    __slots__ = __match_args__ = ("state", "result", "ttl_ms", "persist")

    def __init__(self, state: Any, result: R_co, ttl_ms: int, persist: bool) -> None:
        self.state: Any = state
        self.result: R_co = result
        self.ttl_ms: int = ttl_ms
        self.persist: bool = persist

    def __eq__(self, other: object) -> bool:
        if type(other) is not Outcome:
            return NotImplemented
        return self._tuple() == other._tuple()

    def _tuple(self) -> tuple[Any, R_co, int, bool]:
        return self.state, self.result, self.ttl_ms, self.persist

    def __repr__(self) -> str:
        return (
            f"Outcome(state={self.state!r}, result={self.result!r}, "
            f"ttl_ms={self.ttl_ms}, persist={self.persist})"
        )


class Charged(NamedTuple):
    """The result of charging what has been used: `excess` units of it were left out, because the
    key would owe more than one whole limit."""

    decision: Decision
    excess: int


class Booking(NamedTuple):
    """The result of booking: if `decision` is allowed, the units may be used after `delay_ms`."""

    decision: Decision
    delay_ms: int


def _rebuild(*fields: Any) -> Decision:
    """Unpickles a Decision, in a process that may have the other class."""
    return Decision(*fields)


if native is not None and not TYPE_CHECKING:
    Decision = native.Decision
    native.set_rebuild(_rebuild)


class DegradedDecision(Decision):
    """A decision of a fail mode: the limit was not asked."""

    __slots__ = ("_mode",)

    _mode: str

    @classmethod
    def of(cls, mode: str, decision: Decision) -> Decision:
        """The same decision, made by a fail mode."""
        made = cls(
            decision.allowed,
            decision.limit,
            decision.remaining,
            decision.reset_at,
            decision.retry_after_ms,
        )
        made._mode = mode
        return made

    @classmethod
    def by(cls, mode: str, limit: int, now: int) -> Decision:
        """The decision of the fail mode "open" or "closed" at the instant `now`, on a limit that
        could not be asked: nothing remains, and a second later it is worth asking again."""
        allowed = mode == "open"
        retry_ms = 0 if allowed else RETRY_MS
        return cls.of(mode, Decision(allowed, limit, 0, now + RETRY_MS, retry_ms))

    @property
    def degraded(self) -> str | None:
        return self._mode

    def _undegraded(self) -> Decision:
        return Decision(
            self.allowed, self.limit, self.remaining, self.reset_at, self.retry_after_ms
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DegradedDecision):
            return NotImplemented
        return self._mode == other._mode and self._undegraded() == other._undegraded()

    def __ne__(self, other: object) -> bool:
        # That of the compiled class does not ask this __eq__.
        return not self == other

    def __hash__(self) -> int:
        return hash((self._mode, self._undegraded()))

    def __repr__(self) -> str:
        return f"{repr(self._undegraded())[:-1]}, degraded={self._mode!r})"

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return DegradedDecision.of, (self._mode, self._undegraded())


class DegradedForecast(Forecast):
    """A forecast of a fail mode."""

    __slots__ = ("_mode",)

    _mode: str

    def __init__(self, mode: str, forecast: Forecast) -> None:
        super().__init__(*forecast._tuple())
        object.__setattr__(self, "_mode", mode)

    @property
    def degraded(self) -> str | None:
        return self._mode

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DegradedForecast):
            return NotImplemented
        return self._mode == other._mode and self._tuple() == other._tuple()

    def __hash__(self) -> int:
        return hash((self._mode, self._tuple()))

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, degraded={self._mode!r})"

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return DegradedForecast, (self._mode, Forecast(*self._tuple()))


NEUTRAL = Decision(True, MAX_SAFE, MAX_SAFE, 0, 0)
"""The decision of no limits. Combined with any decision, it yields that decision."""
