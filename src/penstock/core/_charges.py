"""A charge: units that were taken, and can be given back or made up for, once.

What a request costs is often known only afterwards. So an estimate is reserved, and settled when
the true cost is known: what was too much comes back (`Strategy.refund`), and what was too little is
taken whatever is left (`Strategy.charge`), because it has been used. Both are one step of the
store, for all limits of the charge together. A charge settles once: whoever comes second, from
whatever thread, changes nothing.

What is held rather than spent, such as slots, is held under the id of the charge. `renew` prolongs
it; `settle` and `cancel` give it back, whatever was used. A holder counts on its slot no longer
than it can be sure of: from before it asked, by its own steady clock, for the slot's time less a
margin. After that `holds` is False, before the store gives the slot to somebody else.

A settlement that a store did not answer is not repeated: it may have happened, and to give back
twice would admit too much.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ._decision import Decision
from ._steps import PoolRenewals, Step
from ._store import Store
from ._strategy import Strategy
from ._transform import charging, refunding, releasing
from ._validation import reject, require_int, shown
from ._verdict import DecisionFields, Verdict

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Charge", "Part", "Settling"]


S = TypeVar("S", bound="Settling")

_MARGIN = 1 / 8
"""Of its ttl, by which a holder stops counting on a slot before the store gives it away."""


class Part(NamedTuple):
    """What a charge takes from one limit; `name` is empty where there is only one."""

    name: str
    key: str
    strategy: Strategy
    cost: int
    shadow: bool = False


class Settling(DecisionFields):
    """A charge, wherever it is kept: `decision` is the answer, and a block that ends settles it as
    it was reserved, or cancels it if an exception ended it."""

    allowed: bool
    decision: Decision
    charged_at: int
    starts_at: int

    @property
    def ttl_ms(self) -> int | None:
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        raise NotImplementedError

    def settle(self, actual: int | Mapping[str, int]) -> bool:
        raise NotImplementedError

    async def asettle(self, actual: int | Mapping[str, int]) -> bool:
        raise NotImplementedError

    def cancel(self) -> bool:
        raise NotImplementedError

    async def acancel(self) -> bool:
        raise NotImplementedError

    def keep_renewed(self, on_lost: Callable[[Any], object] | None = None) -> Any:
        raise NotImplementedError

    def akeep_renewed(self, on_lost: Callable[[Any], object] | None = None) -> Any:
        raise NotImplementedError

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()
        elif self.is_open:
            self.settle({})

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self.acancel()
        elif self.is_open:
            await self.asettle({})


class Charge(Settling):
    """Units that were reserved. `bool(charge)` is `charge.allowed`.

    `decision` is the answer of the limit, or of the one that binds; `verdict` holds all of them,
    where there are several. `starts_at` is the instant (epoch ms) from which the units are the
    caller's: that of the call, unless they were booked ahead. A charge that was denied holds
    nothing.

    As a context manager it is cancelled by an exception. A block that ends without one leaves the
    charge settled: what was reserved is spent, unless `settle` said otherwise, and slots are given
    back.
    """

    def __init__(
        self,
        store: Store,
        now: Callable[[], int],
        parts: Sequence[Part],
        answer: Decision | Verdict,
        instants: tuple[int, ...],
        delays_ms: tuple[int, ...],
        slot_id: str = "",
        asked_at: float = 0.0,
    ) -> None:
        self.id: str = slot_id
        """Under which slots are held."""
        self.verdict: Verdict | None = answer if isinstance(answer, Verdict) else None
        self.decision: Decision = answer.decision if isinstance(answer, Verdict) else answer
        self.allowed: bool = answer.allowed
        # When each part was charged, or all of them, by the clock that decided it.
        self._instants = instants if len(instants) > 1 else instants * len(parts)
        self.charged_at: int = instants[0]
        self.delays_ms: tuple[int, ...] = delays_ms
        """By how much each part was booked ahead."""
        self.starts_at: int = self.charged_at + max(delays_ms, default=0)
        self._store = store
        self._now = now
        self._asked = parts
        # By the steady clock, when its slots were taken or renewed.
        self._asked_at = asked_at
        # One pop succeeds, and its caller settles.
        self._open = [True] if self.allowed else []

    @property
    def is_open(self) -> bool:
        """Whether it was neither settled nor cancelled yet."""
        return bool(self._open)

    @property
    def holds(self) -> bool:
        """Whether it has slots and may count on all of them."""
        ttl_ms = self.ttl_ms
        if ttl_ms is None or not self._open:
            return False
        return time.monotonic() < self._asked_at + ttl_ms * (1 - _MARGIN) / 1000

    @property
    def ttl_ms(self) -> int | None:
        """For how long its slots are held without being renewed; None if it has none."""
        ttls = [part.strategy.ttl_ms for part, _ in self._parts if part.strategy.is_held]
        return min(ttls) if ttls else None

    def renew(self) -> bool:
        """Hold its slots for another ttl. False if one of them was lost: somebody else may have
        it."""
        asked_at = time.monotonic()
        pools = PoolRenewals(self.held())
        if not pools.steps:
            return False
        told = self._store.apply_all(pools.steps, self._now())
        return self.renewed(pools.answers(told), asked_at)

    async def arenew(self) -> bool:
        """The awaitable twin of `renew`."""
        asked_at = time.monotonic()
        pools = PoolRenewals(self.held())
        if not pools.steps:
            return False
        told = await self._store.aapply_all(pools.steps, self._now())
        return self.renewed(pools.answers(told), asked_at)

    def keep_renewed(self, on_lost: Callable[[Charge], object] | None = None) -> Charge:
        """Renew it in the background until it is settled or lost: a thread renews all charges of
        this process that are kept, those on one store in one call. `on_lost` is called, in that
        thread, when it cannot be counted on any more. Returns the charge itself."""
        from ._renewing import keep

        keep(self._require_held(), on_lost)
        return self

    def akeep_renewed(self, on_lost: Callable[[Charge], object] | None = None) -> Charge:
        """The same by a task of the running event loop, with a store that is awaited."""
        from ._renewing import keep_on_loop

        keep_on_loop(self._require_held(), on_lost)
        return self

    def _require_held(self) -> Charge:
        if self.ttl_ms is None or not self.is_open:
            reject(
                "only a charge that holds slots can be kept renewed, and this one holds none; look "
                "at charge.allowed first"
            )
        return self

    def held(self) -> list[tuple[str, Strategy, str]]:
        """The slots to renew, for `PoolRenewals`; those of several charges may go together."""
        if not self.is_open:
            return []
        return [(p.key, p.strategy, self.id) for p, _ in self._parts if p.strategy.is_held]

    def renewed(self, answers: Sequence[Decision], asked_at: float) -> bool:
        """Take down what the store answered to that, `asked_at` by the steady clock."""
        held = all(answer.allowed for answer in answers)
        # One that was lost is given up at once, and not when its time would be over.
        self._asked_at = asked_at if held else -math.inf
        return held

    @property
    def _parts(self) -> list[tuple[Part, int]]:
        """What was taken, and at what instant."""
        return [(part, at) for part, at in self._admitting if part.cost]

    @property
    def _admitting(self) -> list[tuple[Part, int]]:
        """The same with what was only looked at: a shadow that would have denied was not charged,
        and is not."""
        if not self.allowed:
            return []
        told = (self.decision,) if self.verdict is None else self.verdict.decisions
        each = zip(self._asked, self._instants, self.delays_ms, told, strict=True)
        return [(part, at + delay) for part, at, delay, decision in each if decision.allowed]

    @property
    def cost(self) -> Mapping[str, int]:
        """What was reserved, by the name of the limit, which is empty for a limit on its own."""
        return {part.name: part.cost for part, _ in self._parts}

    def settle(self, actual: int | Mapping[str, int]) -> bool:
        """Replace what was reserved by what was used: for every limit that was charged, or by name,
        where those left out stay as they are. True if this call did it, False if it was settled
        before."""
        steps = self.settlement(actual)
        if not self._take():
            return False
        if steps:
            self._store.apply_all(steps, self._now())
        return True

    async def asettle(self, actual: int | Mapping[str, int]) -> bool:
        """The awaitable twin of `settle`."""
        steps = self.settlement(actual)
        if not self._take():
            return False
        if steps:
            await self._store.aapply_all(steps, self._now())
        return True

    def cancel(self) -> bool:
        """Give everything back. True if this call did it; a charge that was denied has nothing."""
        if not self._take():
            return False
        self._store.apply_all(self.refunds(), self._now())
        return True

    async def acancel(self) -> bool:
        """The awaitable twin of `cancel`."""
        if not self._take():
            return False
        await self._store.aapply_all(self.refunds(), self._now())
        return True

    def _take(self) -> bool:
        try:
            return self._open.pop()
        except IndexError:
            return False

    def refunds(self) -> list[Step]:
        """What to ask the store in order to give everything back."""
        return [self._refund(part, at, part.cost) for part, at in self._parts]

    def _refund(self, part: Part, at: int, units: int) -> Step:
        if part.strategy.is_held:
            return Step(part.key, releasing(part.strategy, self.id))
        return Step(part.key, refunding(part.strategy, at), units)

    def settlement(self, actual: int | Mapping[str, int]) -> list[Step]:
        """What to ask the store in order to replace what was reserved by what was used."""
        if not self.allowed:
            reject(
                "this charge was denied, so there is nothing to settle; look at charge.allowed "
                "before the work begins"
            )
        used = self._used(actual)
        steps = []
        for part, at in self._admitting:
            more = used.get(part.name, part.cost) - part.cost
            if part.strategy.is_held:
                if part.cost:
                    steps.append(self._refund(part, at, 1))
            elif more > 0:
                steps.append(Step(part.key, charging(part.strategy), more))
            elif more < 0:
                steps.append(self._refund(part, at, -more))
        return steps

    def _used(self, actual: int | Mapping[str, int]) -> Mapping[str, int]:
        if not isinstance(actual, Mapping):
            require_int("actual", actual, 0)
            return {part.name: actual for part, _ in self._parts}
        # What a shadow did not take is not an error: whether it did was not the caller's choice.
        names = list(self.cost if self.verdict is None else self.verdict.limits)
        for name, units in actual.items():
            if name not in names:
                there = ", ".join(map(repr, names)) or "none"
                reject(f"actual names {shown(name)}, which was not charged; there are {there}")
            require_int(f"the actual cost of {name!r}", units, 0)
        return actual

    def __repr__(self) -> str:
        state = "open" if self._open else "settled" if self.allowed else "denied"
        return f"<Charge {state}, {dict(self.cost)!r}, starts_at={self.starts_at}>"
