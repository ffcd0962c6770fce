"""Charges: units that were reserved, and can be settled or cancelled once.

The true cost of a request is often known only afterwards. So an estimate is reserved, and settled
when the true cost is known: units that were not used are refunded (`Strategy.refund`), and units
used beyond the estimate are charged even if nothing is left (`Strategy.charge`). Either way it is
one call to the store for all limits of the charge. A charge settles once; a second call, from
whatever thread, changes nothing. It belongs to the process that made it, and cannot be copied
(`_owned.py`).

Slots are held under the id of the charge. `renew` extends them; `settle` and `cancel` give them
back. `holds` is True only while the slot is certainly this holder's: for its ttl less a margin,
counted on the holder's monotonic clock from before the request was sent. So it turns False before
the store can give the slot to another holder, however long the reply took.

A settlement without an answer from the store is not repeated: it may have been applied, and a
second refund would admit too much.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ._decision import Charged, Decision
from ._errors import PenstockError
from ._owned import Owned
from ._steps import PoolRenewals, Step
from ._store import Store
from ._strategy import Strategy
from ._transform import charging, looking, refunding, releasing
from ._validation import reject, require_int, shown
from ._verdict import DecisionFields, Verdict
from ._waiting import wake_slot_waiters

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["MARGIN", "Charge", "Part", "Settlement", "Settling", "give_up", "is_cancellation"]


S = TypeVar("S", bound="Settling")

MARGIN = 1 / 8
"""The share of the ttl by which a holder stops relying on a slot before it expires."""


class Part(NamedTuple):
    """What a charge takes from one limit. `name` is empty for a limit on its own."""

    name: str
    key: str
    strategy: Strategy
    cost: int
    shadow: bool = False


class Settlement(NamedTuple):
    """What became of a settlement: whether this call settled the charge, and the units that were
    used and not charged, by the name of the limit."""

    settled: bool
    uncharged: Mapping[str, int] = MappingProxyType({})


class Settling(DecisionFields, Owned):
    """The base of charges in this process and in a service. At the end of a `with` block it is
    settled as reserved, or cancelled if the block raised. A child that was forked within the block
    leaves it without effect: its parent is still in there, and counts on what it holds."""

    allowed: bool
    decision: Decision
    verdict: Verdict | None
    charged_at: int
    starts_at: int
    uncharged: Mapping[str, int]

    @property
    def degraded(self) -> str | None:
        """The fail mode that decided while the store was away; None if all limits were asked. Then
        nothing was reserved, so the charge holds nothing, and there is nothing to settle."""
        return (self.decision if self.verdict is None else self.verdict).degraded

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

    def settle_and_look(self, actual: int | Mapping[str, int]) -> Decision | Verdict | None:
        """As `settle`, and returns what the limits have left then; None if that is not known."""
        self.settle(actual)
        return None

    async def asettle_and_look(self, actual: int | Mapping[str, int]) -> Decision | Verdict | None:
        """The awaitable twin of `settle_and_look`."""
        await self.asettle(actual)
        return None

    def cancel(self) -> bool:
        raise NotImplementedError

    async def acancel(self) -> bool:
        raise NotImplementedError

    def keep_renewed(self, on_lost: Callable[[Any], object] | None = None) -> Any:
        raise NotImplementedError

    def akeep_renewed(self, on_lost: Callable[[Any], object] | None = None) -> Any:
        raise NotImplementedError

    def __enter__(self: S) -> S:
        self._require_owner()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_inherited:
            return
        if error is None:
            if self.is_open:
                self.settle({})
            return
        try:
            self.cancel()
        except PenstockError as failure:
            _log_no_refund(failure)

    async def __aenter__(self: S) -> S:
        self._require_owner()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_inherited:
            return
        if error is None:
            if self.is_open:
                await self.asettle({})
            return
        try:
            await self.acancel()
        except PenstockError as failure:
            _log_no_refund(failure)


def _log_no_refund(failure: PenstockError) -> None:
    """The caller gets the exception of the block, which may be the cancellation of its task."""
    import logging  # of which `import penstock` has no need

    logging.getLogger("penstock").warning("a charge could not be refunded: %s", failure)


class Charge(Settling):
    """Units that were reserved. `bool(charge)` is `charge.allowed`.

    `decision` is that of the limit, or of the binding one; with several limits, `verdict` holds all
    of them. `starts_at` is the instant (epoch ms) from which the units may be used: that of the
    call, unless they were booked ahead. A denied charge holds nothing.

    As a context manager, a block that raises cancels the charge. A block that ends normally settles
    it as reserved, unless `settle` was called, and gives its slots back.
    """

    on_change: Callable[[], object] | None = None
    """Called after a settlement or a cancellation has changed the store, or may have."""

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
        counted_at: tuple[int, ...] | None = None,
    ) -> None:
        self.id: str = slot_id
        """The id under which its slots are held."""
        self.verdict: Verdict | None = None
        self.decision: Decision
        if isinstance(answer, Verdict):
            self.verdict, self.decision = answer, answer.decision
        else:
            self.decision = answer
        self.allowed: bool = answer.allowed
        # When each part was charged, or all of them, by the clock that decided it.
        self._instants = instants
        self.charged_at: int = instants[0]
        self.delays_ms: tuple[int, ...] = delays_ms
        """How far ahead each part was booked."""
        # A shadow never delays: neither what it has booked, nor what it would not have.
        enforced = [ms for part, ms in zip(parts, delays_ms, strict=True) if not part.shadow]
        self.starts_at: int = self.charged_at + max(enforced, default=0)
        self.uncharged: Mapping[str, int] = {}
        """After `settle`: the units that were used beyond what was reserved and were not charged,
        by the name of the limit (empty for a limit on its own), because the key would owe more than
        one whole limit. Empty if everything was charged."""
        # By which instant each part is refunded, if the decisions do not tell.
        self._counted_at = counted_at
        self._store = store
        self._now = now
        self._asked = parts
        # The monotonic time before its slots were last taken or renewed.
        self._asked_at = asked_at
        # The monotonic time before it was made; unknown if another process may have made it.
        self._made_at = asked_at or None
        # Only one caller can pop this, from whatever thread; that one settles.
        self._open = [True] if self.allowed else []
        self._own()

    @property
    def is_open(self) -> bool:
        """Whether it was allowed, and is neither settled nor cancelled."""
        return bool(self._open)

    @property
    def holds(self) -> bool:
        """Whether it has slots, all of which are certainly still its own."""
        return bool(self._open) and time.monotonic() < self._holds_until

    @property
    def _holds_until(self) -> float:
        """The monotonic time until which its slots are certainly its own, unless they are renewed;
        before all times if it has none."""
        ttl_ms = self.ttl_ms
        return -math.inf if ttl_ms is None else self._asked_at + ttl_ms * (1 - MARGIN) / 1000

    @property
    def ttl_ms(self) -> int | None:
        """How long its slots last without being renewed; None if it has none."""
        ttls = [part.strategy.ttl_ms for part, _ in self._parts if part.strategy.is_held]
        return min(ttls) if ttls else None

    def renew(self) -> bool:
        """Hold its slots for another ttl. False if one of them had expired: another holder may
        have it."""
        self._require_owner()
        asked_at = time.monotonic()
        pools = PoolRenewals(self.held())
        if not pools.steps:
            return False
        told = self._store.apply_all(pools.steps, self._now())
        return self.renewed(pools.answers(told), asked_at)

    async def arenew(self) -> bool:
        """The awaitable twin of `renew`."""
        self._require_owner()
        asked_at = time.monotonic()
        pools = PoolRenewals(self.held())
        if not pools.steps:
            return False
        told = await self._store.aapply_all(pools.steps, self._now())
        return self.renewed(pools.answers(told), asked_at)

    def keep_renewed(self, on_lost: Callable[[Charge], object] | None = None) -> Charge:
        """Renew it in the background until it is settled or lost, together with all such charges
        of this process, with one call per store. `on_lost` is called in a thread of its own when
        `holds` has become False. Returns the charge itself. For a charge that was denied, or has
        ended, there is nothing to do."""
        from ._renewing import keep

        if self._is_renewable():
            keep(self, on_lost)
        return self

    def akeep_renewed(self, on_lost: Callable[[Charge], object] | None = None) -> Charge:
        """As `keep_renewed`, by a task of the running event loop, with the store's async calls."""
        from ._renewing import keep_on_loop

        if self._is_renewable():
            keep_on_loop(self, on_lost)
        return self

    def _is_renewable(self) -> bool:
        self._require_owner()
        if self.is_open and self.ttl_ms is None:
            reject(
                "only a charge that holds slots can be kept renewed, and this one holds none; "
                "charge.ttl_ms is None then"
            )
        return self.is_open

    def held(self) -> list[tuple[str, Strategy, str]]:
        """The slots to renew, as `PoolRenewals` takes them, also from several charges."""
        if not self.is_open:
            return []
        return [(p.key, p.strategy, self.id) for p, _ in self._parts if p.strategy.is_held]

    def renewed(self, answers: Sequence[Decision], asked_at: float) -> bool:
        """Record the store's answers to a renewal that was sent at the monotonic time
        `asked_at`."""
        held = all(answer.allowed for answer in answers)
        # A lost slot is given up at once, not at the end of its ttl. An answer may be overtaken by
        # that to a later renewal.
        self._asked_at = max(self._asked_at, asked_at) if held else -math.inf
        return held

    @property
    def _parts(self) -> list[tuple[Part, int]]:
        """What was charged, and at what instant."""
        return [(part, at) for part, at in self._admitting if part.cost]

    @property
    def _admitting(self) -> list[tuple[Part, int]]:
        """The same, with parts of cost 0. Shadows that would have denied were not charged, and are
        not charged later either."""
        if not self.allowed:
            return []
        decisions = (self.decision,) if self.verdict is None else self.verdict.decisions
        each = zip(self._asked, self.counted_at, decisions, strict=True)
        return [(part, at) for part, at, decision in each if decision.allowed]

    @property
    def counted_at(self) -> tuple[int, ...]:
        """The instant by which each part is refunded: see `Strategy.counted_at`."""
        if self._counted_at is not None:
            return self._counted_at
        decisions = (self.decision,) if self.verdict is None else self.verdict.decisions
        each = zip(self._asked, self.instants, self.delays_ms, decisions, strict=True)
        return tuple([part.strategy.counted_at(told, at + delay) for part, at, delay, told in each])

    @property
    def instants(self) -> tuple[int, ...]:
        """When each part was charged, by the clock that decided it."""
        each = self._instants
        return each * len(self._asked) if len(each) == 1 else each

    @property
    def cost(self) -> Mapping[str, int]:
        """What was reserved, by the name of the limit; the name is empty for a limit on its
        own."""
        return {part.name: part.cost for part, _ in self._parts}

    def settle(self, actual: int | Mapping[str, int]) -> bool:
        """Replace the reserved cost by the actual one: a number for every limit that was charged,
        or a mapping by name, in which limits that are left out keep what was reserved. True if this
        call settled it, False if it was settled or cancelled before. `uncharged` says what was too
        much to be charged."""
        steps = self.settlement(actual)
        if not self._take():
            return False
        if steps:
            self.uncharged = self.uncharged_by(steps, self._apply(steps))
        return True

    async def asettle(self, actual: int | Mapping[str, int]) -> bool:
        """The awaitable twin of `settle`."""
        steps = self.settlement(actual)
        if not self._take():
            return False
        if steps:
            self.uncharged = self.uncharged_by(steps, await self._aapply(steps))
        return True

    def settle_and_look(self, actual: int | Mapping[str, int]) -> Decision | Verdict | None:
        """As `settle`, and returns what the limits have left then, by the same call to the store;
        None if the charge was settled or cancelled before."""
        steps = self.settlement(actual)
        if not self._take():
            return None
        results = self._apply([*steps, *self._looks()])
        self.uncharged = self.uncharged_by(steps, results[: len(steps)])
        return self._left(results)

    async def asettle_and_look(self, actual: int | Mapping[str, int]) -> Decision | Verdict | None:
        """The awaitable twin of `settle_and_look`."""
        steps = self.settlement(actual)
        if not self._take():
            return None
        results = await self._aapply([*steps, *self._looks()])
        self.uncharged = self.uncharged_by(steps, results[: len(steps)])
        return self._left(results)

    def _looks(self) -> list[Step]:
        return [Step(part.key, looking(part.strategy), 0, part.shadow) for part in self._asked]

    def _left(self, results: Sequence[Any]) -> Decision | Verdict:
        decisions = tuple(results[len(results) - len(self._asked) :])
        if self.verdict is None:
            first: Decision = decisions[0]
            return first
        shadows = tuple([part.shadow for part in self._asked])
        return Verdict(tuple(self.verdict.limits), decisions, shadows, self.charged_at)

    def uncharged_by(self, steps: Sequence[Step], results: Sequence[Any]) -> Mapping[str, int]:
        """What the steps of a settlement left out, by their results."""
        names = {part.key: part.name for part in self._asked}
        pairs = zip(steps, results, strict=True)
        charged = [(names[step.key], told) for step, told in pairs if type(told) is Charged]
        return {name: told.excess for name, told in charged if told.excess}

    def cancel(self) -> bool:
        """Refund everything. True if this call cancelled it, False if it was settled, cancelled or
        denied before."""
        if not self._take():
            return False
        if steps := self.refunds():
            self._apply(steps)
        return True

    async def acancel(self) -> bool:
        """The awaitable twin of `cancel`."""
        if not self._take():
            return False
        if steps := self.refunds():
            await self._aapply(steps)
        return True

    def _apply(self, steps: Sequence[Step]) -> Sequence[Any]:
        try:
            if len(steps) == 1 and steps[0].cost:
                key, transform, units, _ = steps[0]
                return (self._store.apply(key, transform, self._now(), units),)
            return self._store.apply_all(steps, self._now())
        finally:
            self._report_change(steps)

    async def _aapply(self, steps: Sequence[Step]) -> Sequence[Any]:
        try:
            if len(steps) == 1 and steps[0].cost:
                key, transform, units, _ = steps[0]
                return (await self._store.aapply(key, transform, self._now(), units),)
            return await self._store.aapply_all(steps, self._now())
        except BaseException as error:
            if is_cancellation(error):
                # The store may not have been asked yet. To give back a slot twice does no harm.
                slots = [step for step in steps if step.transform.role == "release"]
                await give_up(self._store, self._now, slots)
            raise
        finally:
            self._report_change(steps)

    def _report_change(self, steps: Sequence[Step]) -> None:
        """Steps were applied: tell `on_change`, and wake the waiters of this process for slots that
        were released."""
        if self.on_change is not None:
            self.on_change()
        if self.id:
            for step in steps:
                if step.transform.role == "release":
                    wake_slot_waiters(self._store, step.key)

    def _take(self) -> bool:
        self._require_owner()
        try:
            return self._open.pop()
        except IndexError:
            return False

    def refunds(self) -> list[Step]:
        """The steps that refund everything."""
        charged = [(part, at) for part, at in self._admitting if part.cost]
        return [
            self._refund(part, at, part.cost) for part, at in charged if not self._is_void(part)
        ]

    def _is_void(self, part: Part) -> bool:
        """Whether its units are gone, because the key was reset since. A slot is given back by its
        id, which no later holder has."""
        if part.strategy.is_held:
            return False
        charged_at = max(self._instants)
        return self._store.resets.is_since(part.key, self._made_at, charged_at)

    def _refund(self, part: Part, at: int, units: int) -> Step:
        if part.strategy.is_held:
            return Step(part.key, releasing(part.strategy, self.id))
        return Step(part.key, refunding(part.strategy, at), units)

    def settlement(self, actual: int | Mapping[str, int]) -> list[Step]:
        """The steps that replace the reserved cost by the actual one."""
        if not self.allowed:
            reject(
                "this charge was denied, so there is nothing to settle; check charge.allowed "
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
            elif more < 0 and not self._is_void(part):
                steps.append(self._refund(part, at, -more))
        return steps

    def _used(self, actual: int | Mapping[str, int]) -> Mapping[str, int]:
        if not isinstance(actual, Mapping):
            require_int("actual", actual, 0)
            return {part.name: actual for part, _ in self._parts}
        # The caller cannot know whether a shadow was charged, so naming one is no error.
        names = list(self.cost if self.verdict is None else self.verdict.limits)
        if actual and names == [""]:
            reject(f"this charge is of one limit, so actual must be a number, not {shown(actual)}")
        for name, units in actual.items():
            if name not in names:
                there = ", ".join(map(repr, names)) or "none"
                reject(f"actual names {shown(name)}, which was not charged; the limits are {there}")
            require_int(f"the actual cost of {name!r}", units, 0)
        return actual

    def __repr__(self) -> str:
        state = "open" if self._open else "settled" if self.allowed else "denied"
        return f"<Charge {state}, {dict(self.cost)!r}, starts_at={self.starts_at}>"


def is_cancellation(error: BaseException) -> bool:
    """Whether a task was cancelled; it may await until it lets the error go on."""
    from asyncio import CancelledError

    return isinstance(error, CancelledError)


async def give_up(store: Store, now: Callable[[], int], steps: Sequence[Step]) -> None:
    """Apply the steps of a caller that leaves, if the store is there. A task of its own does it, in
    case the caller is cancelled once more."""
    from asyncio import shield

    from ._loops import running_loop

    async def leave() -> None:
        with suppress(PenstockError):
            await store.aapply_all(steps, now())

    if steps:
        await shield(running_loop().create_task(leave()))
