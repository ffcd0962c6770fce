"""A charge: units that were taken, and can be given back or made up for, once.

What a request costs is often known only afterwards. So an estimate is reserved, and settled when
the true cost is known: what was too much comes back (`Strategy.refund`), and what was too little is
taken whatever is left (`Strategy.charge`), because it has been used. Both are one step of the
store, for all limits of the charge together. A charge settles once: whoever comes second, from
whatever thread, changes nothing.

A settlement that a store did not answer is not repeated: it may have happened, and to give back
twice would admit too much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from ._decision import Booking, Decision
from ._store import Store
from ._strategy import Strategy
from ._transform import Step, booking, charging, checking, pausing, refunding, telling
from ._validation import MAX_INSTANT_MS, MAX_SPAN_MS, reject, require_int, shown
from ._verdict import Verdict

__all__ = ["Charge", "Part", "areserved", "pauses", "require_until", "require_wait", "reserved"]


class Part(NamedTuple):
    """What a charge takes from one limit; `name` is empty where there is only one."""

    name: str
    key: str
    strategy: Strategy
    cost: int
    shadow: bool = False


class Charge:
    """Units that were reserved. `bool(charge)` is `charge.allowed`.

    `decision` is the answer of the limit, or of the one that binds; `verdict` holds all of them,
    where there are several. `starts_at` is the instant (epoch ms) from which the units are the
    caller's: that of the call, unless they were booked ahead. A charge that was denied holds
    nothing. As a context manager it is cancelled by an exception.
    """

    def __init__(
        self,
        store: Store,
        now: Callable[[], int],
        parts: Sequence[Part],
        answer: Decision | Verdict,
        charged_at: int,
        delays_ms: Sequence[int],
    ) -> None:
        self.verdict: Verdict | None = answer if isinstance(answer, Verdict) else None
        self.decision: Decision = answer.decision if isinstance(answer, Verdict) else answer
        self.allowed: bool = answer.allowed
        self.charged_at: int = charged_at
        self.starts_at: int = charged_at + max(delays_ms, default=0)
        self._store = store
        self._now = now
        told = [self.decision] if self.verdict is None else list(self.verdict.limits.values())
        # A shadow that would have denied was not charged.
        self._parts = [
            (part, charged_at + delay)
            for part, delay, decision in zip(parts, delays_ms, told, strict=True)
            if answer.allowed and decision.allowed and part.cost
        ]
        # Whoever takes this out settles.
        self._open = [True] if answer.allowed else []

    @property
    def is_open(self) -> bool:
        """Whether it was neither settled nor cancelled yet."""
        return bool(self._open)

    @property
    def cost(self) -> Mapping[str, int]:
        """What was reserved, by the name of the limit; a limit on its own has none."""
        return {part.name: part.cost for part, _ in self._parts}

    def settle(self, actual: int | Mapping[str, int]) -> bool:
        """Replace what was reserved by what was used: for every limit, or by name, where those left
        out stay as they are. True if this call did it, False if it was settled before."""
        steps = self._settlement(actual)
        if not self._take():
            return False
        if steps:
            self._store.apply_all(steps, self._now())
        return True

    async def asettle(self, actual: int | Mapping[str, int]) -> bool:
        """The awaitable twin of `settle`."""
        steps = self._settlement(actual)
        if not self._take():
            return False
        if steps:
            await self._store.aapply_all(steps, self._now())
        return True

    def cancel(self) -> bool:
        """Give everything back. True if this call did it; a charge that was denied has nothing."""
        if not self._take():
            return False
        self._store.apply_all(self._refunds(), self._now())
        return True

    async def acancel(self) -> bool:
        """The awaitable twin of `cancel`."""
        if not self._take():
            return False
        await self._store.aapply_all(self._refunds(), self._now())
        return True

    def _take(self) -> bool:
        try:
            return self._open.pop()
        except IndexError:
            return False

    def _refunds(self) -> list[Step]:
        return [Step(part.key, refunding(part.strategy, at), part.cost) for part, at in self._parts]

    def _settlement(self, actual: int | Mapping[str, int]) -> list[Step]:
        if not self.allowed:
            reject(
                "this charge was denied, so there is nothing to settle; look at charge.allowed "
                "before the work begins"
            )
        used = self._used(actual)
        steps = []
        for part, at in self._parts:
            more = used.get(part.name, part.cost) - part.cost
            if more > 0:
                steps.append(Step(part.key, charging(part.strategy), more))
            elif more < 0:
                steps.append(Step(part.key, refunding(part.strategy, at), -more))
        return steps

    def _used(self, actual: int | Mapping[str, int]) -> Mapping[str, int]:
        if not isinstance(actual, Mapping):
            require_int("actual", actual, 0)
            return {part.name: actual for part, _ in self._parts}
        # What a shadow did not take is not an error: whether it did was not the caller's choice.
        names = set(self.cost)
        if self.verdict is not None:
            names |= set(self.verdict.limits)
        for name, units in actual.items():
            if name not in names:
                there = ", ".join(map(repr, names)) or "none"
                reject(f"actual names {shown(name)}, which was not charged; there are {there}")
            require_int(f"the actual cost of {name!r}", units, 0)
        return actual

    def __bool__(self) -> bool:
        return self.allowed

    def __enter__(self) -> Charge:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()

    async def __aenter__(self) -> Charge:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self.acancel()

    def __repr__(self) -> str:
        state = "open" if self._open else "settled" if self.allowed else "denied"
        return f"<Charge {state}, {dict(self.cost)!r}, starts_at={self.starts_at}>"


Answer = Callable[[Sequence[Decision]], Decision | Verdict]
"""What to make of the decisions: the one, or the verdict of several."""


def reserved(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    max_wait_ms: int,
    answer: Answer,
) -> Charge:
    """Take what the parts cost, all or nothing, and hold it."""
    at = now()
    results = store.apply_all(_taking(store, parts, max_wait_ms), at)
    return _charge(store, now, parts, results, at, answer)


async def areserved(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    max_wait_ms: int,
    answer: Answer,
) -> Charge:
    """The awaitable twin of `reserved`."""
    at = now()
    results = await store.aapply_all(_taking(store, parts, max_wait_ms), at)
    return _charge(store, now, parts, results, at, answer)


def _taking(store: Store, parts: Sequence[Part], max_wait_ms: int) -> list[Step]:
    steps = []
    for part in parts:
        strategy = part.strategy
        transform: Any = checking(strategy)
        if max_wait_ms and strategy.books_ahead and part.cost:
            transform = booking(strategy, max_wait_ms)
        steps.append(Step(part.key, transform, part.cost, part.shadow))
    if store.reads_own_clock and parts:
        # By whose clock it was charged is by whose it is given back.
        steps.append(Step(parts[0].key, telling(parts[0].strategy), 1))
    return steps


def _charge(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    results: list[Any],
    at: int,
    answer: Answer,
) -> Charge:
    if len(results) > len(parts):
        at = results.pop()
    decisions = [each.decision if isinstance(each, Booking) else each for each in results]
    delays = [each.delay_ms if isinstance(each, Booking) else 0 for each in results]
    return Charge(store, now, parts, answer(decisions), at, delays)


def require_wait(max_wait_ms: Any) -> int:
    """How far ahead a booking may lie; 0 is not at all."""
    return require_int("max_wait_ms", max_wait_ms, 0, MAX_SPAN_MS)


def require_until(until_ms: Any) -> int:
    """The end of a pause: an instant."""
    return require_int("until_ms", until_ms, 0, MAX_INSTANT_MS)


def pauses(parts: Sequence[Part], until_ms: int) -> list[Step]:
    """The steps that let nothing in before an instant."""
    return [Step(part.key, pausing(part.strategy, until_ms)) for part in parts]
