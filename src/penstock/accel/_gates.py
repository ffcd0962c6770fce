"""The compiled gates in front of limiters.

A gate reads the clock, finds the key and decides in one step. That takes strategies with native
kernels on a store with a native table; everything else goes the plain way. A limiter of one
strategy is a Limiter in every respect, whose `check`, `check_many` and their twins come from the
gate. That of several limits has a compiled `check` for the plain call, every limit with a key and
each of cost 1; whatever else is asked goes to `Limits.check` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..core import native
from ..core._clock import ANCHOR_NS, Clock, SystemClock
from ..core._decision import Decision
from ..core._limiter import Limiter, SlotLimiter
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import require_cost, require_key, require_keys
from ..core._verdict import Verdict

__all__ = ["limiter_class", "limits_gate", "spending"]


def limiter_class(strategy: Strategy, store: Store) -> type[Limiter]:
    """The fastest class that can hold this strategy on this store."""
    if not isinstance(strategy, Strategy) or not isinstance(store, Store):
        return Limiter  # which says what is wrong
    if strategy.is_held:
        return SlotLimiter
    fits = store.native_table is not None and strategy.native is not None
    return _AcceleratedLimiter if fits else Limiter


def spending(
    limiter: Limiter, level: int, otherwise: Callable[[str, int, Decision], Decision]
) -> Callable[..., Decision] | None:
    """The limiter's `check`, compiled, that hands over to `otherwise` what it denies or leaves no
    more than `level` of; None for a limiter that is not compiled."""
    if native is None or not isinstance(limiter, native.Gate):
        return None
    check: Callable[..., Decision] = native.Spending(limiter, level, otherwise).check
    return check


def limits_gate(limits: Any, parts: Sequence[tuple[str, Any, str, Any]]) -> Any:
    """A compiled object with a `check` for these limits, or None."""
    table = limits.store.native_table
    if native is None or table is None or any(check.native is None for *_, check in parts):
        return None
    if not native.LimitsGate.fits(table, len(parts)):
        return None
    return native.LimitsGate(
        table,
        [(name, lead, check, limit.keyless) for name, limit, lead, check in parts],
        tuple([limit.shadow for _, limit, _, _ in parts]),
        limits._now,
        _anchor_ns(limits.clock),
        Verdict,
        type(limits).check.__get__(limits),
    )


def _anchor_ns(clock: Clock) -> int | None:
    """Where the compiled code may read the steady clock by itself."""
    steady = native.reads_steady_clock and type(clock) is SystemClock
    return ANCHOR_NS if steady else None


if native is not None:

    class _AcceleratedLimiter(native.Gate, Limiter):  # type: ignore[misc]
        """A Limiter over a native table."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            Limiter.__init__(self, *args, **kwargs)

        def _settle_on(self, store: Any) -> None:
            Limiter._settle_on(self, store)
            self._open_gate(
                store.native_table,
                self._check,
                self._lead,
                self._now,
                _anchor_ns(self.clock),
                require_key,
                require_keys,
                require_cost,
            )

        # The compiled base has one of its own, which knows nothing of how a limiter was made.
        __reduce__ = Limiter.__reduce__

        async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
            decisions: list[Decision] = self.check_many(keys, cost)
            return decisions
