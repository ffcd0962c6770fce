"""Transforms: the operations that a store applies to a key.

A `Transform` is a pure transition: the strategy's `check`, or another of its methods together with
its argument.

Leasing is a transform too: a check of a larger cost, which takes less if less is left, as long as
that is enough for the request at hand. So no units are stranded at the end of a window. `bargain`
holds that rule; the transform runs it with the oracle inside an atomic `apply`, and a store with a
faster `check` may run it with that, one atomic check at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from ._accelerator import LuaAccelerator
from ._decision import Booking, Charged, Decision, Forecast, Outcome
from ._figures import in_own_figures
from ._strategy import Strategy

__all__ = [
    "CLEAR",
    "READING",
    "Grant",
    "Transform",
    "asking",
    "bargain",
    "booking",
    "charging",
    "checking",
    "finding",
    "forecasting",
    "leasing",
    "looking",
    "operating",
    "pausing",
    "peeking",
    "queueing",
    "reclaiming",
    "refunding",
    "releasing",
    "renewing",
    "taking",
    "telling",
    "ticketing",
    "trying",
]

R = TypeVar("R")

READING = frozenset({"peek", "forecast", "look", "try", "tell"})
"""The roles that never write."""


class Transform(Generic[R]):
    """A pure transition for a store to apply, with its accelerators.

    `run(state, now, cost)` returns an Outcome. `strategy` is the one whose state it reads, `kind`
    the name of that strategy. `lua` and `native` are its accelerators. `role` names the operation
    that they have to perform in place of `run`: "check", "lease" (see `Grant`), "refund", "charge",
    "book" or "pause", with their `argument`, or one of `READING`, which never write.

    `refuse(now, retry_after_ms)` is the result when a store has no room for a new key.
    `decision_in(result)` is the decision about the key, by which a full store chooses what to
    evict; None if the result contains none. `admits(result)` is whether a request of several steps
    may be admitted.
    """

    argument: int | str | tuple[str, ...] = 0
    """The argument of the role, beside the cost."""
    reverse: Callable[[int], Transform[int]] | None = None
    """`reverse(charged_at)` is the transform that refunds this one; None if it takes nothing."""
    stands: Callable[[Any, int], R] | None = None
    """`stands(state, now)` is the result in place of an admission if another step has denied the
    request: the figures as they stand, nothing charged. None if the result is kept."""
    need: int = 1
    """For the role "lease": the least that is useful, where `cost` is what is wanted."""
    denial_writes: bool = False
    """Whether its denial leaves a state to be written, as that of a waiter leaves its ticket."""
    kernel: Any = None
    """The compiled kernel made from `native`, on first use."""

    def __init__(
        self,
        strategy: Strategy | None,
        role: str,
        run: Callable[[Any, int, int], Outcome[R]],
        refuse: Callable[[int, int], R],
    ) -> None:
        self.strategy: Strategy | None = strategy
        self.kind: str = "" if strategy is None else strategy.name
        self.role: str = role
        self.run: Callable[[Any, int, int], Outcome[R]] = run
        self.refuse: Callable[[int, int], R] = refuse
        self.lua: LuaAccelerator | None = None if strategy is None else strategy.lua
        self.native: tuple[Any, ...] | None = None if strategy is None else strategy.native
        self.decision_in: Callable[[R], Any] = _none
        self.admits: Callable[[R], bool] = _always

    def needs_room(self, now: int, cost: int) -> bool:
        """Whether a check of a new key would write a state. If so, a store without room answers
        reads of a new key with a refusal too."""
        return self.strategy is not None and self.strategy.check(None, now, cost).persist

    def __repr__(self) -> str:
        return f"<Transform {self.role} of {self.strategy!r}>"


def _none(_result: Any) -> None:
    return None


def _always(_result: Any) -> bool:
    return True


def _itself(result: Any) -> Any:
    return result


def checking(strategy: Strategy) -> Transform[Decision]:
    """The transform behind `check`."""
    run = in_own_figures(strategy, strategy.check)
    transform = Transform(strategy, "check", run, _denying(strategy))
    transform.admits = bool
    transform.stands = _standing(strategy)
    transform.reverse = lambda charged_at: refunding(strategy, charged_at)
    if strategy.restricts:
        transform.decision_in = _itself
    return transform


def _denial(strategy: Strategy, now: int, retry_after_ms: int) -> Decision:
    return Decision(False, strategy.limit, 0, now + retry_after_ms, retry_after_ms)


def _denying(strategy: Strategy) -> Callable[[int, int], Decision]:
    return partial(_denial, strategy)


def trying(transform: Transform[R]) -> Transform[R]:
    """The result of the transform in a request that is denied: without writing, and in place of an
    admission the figures as they stand."""
    admits, stands = transform.admits, transform.stands

    def run(state: Any, now: int, cost: int) -> Outcome[R]:
        result = transform.run(state, now, cost).result
        if stands is not None and admits(result):
            result = stands(state, now)
        return Outcome(state, result, 0, False)

    trial = Transform(transform.strategy, "try", run, transform.refuse)
    trial.admits = admits
    return trial


def looking(strategy: Strategy) -> Transform[Decision]:
    """The figures as they stand, for a step of cost 0: never a denial."""

    stands = _standing(strategy)

    def run(state: Any, now: int, _cost: int) -> Outcome[Decision]:
        return Outcome(state, stands(state, now), 0, False)

    def refuse(now: int, retry_after_ms: int) -> Decision:
        return Decision(True, strategy.limit, 0, now + retry_after_ms, 0)

    transform = Transform(strategy, "look", run, refuse)
    transform.stands = stands
    return transform


def _standing(strategy: Strategy) -> Callable[[Any, int], Decision]:
    """`Strategy.standing`, on states as stores keep them."""

    def run(state: Any, now: int, _cost: int) -> Outcome[Decision]:
        return Outcome(state, strategy.standing(state, now), 0, False)

    look = in_own_figures(strategy, run)
    return lambda state, now: look(state, now, 0).result


def asking(strategy: Strategy) -> Transform[Decision]:
    """The decision on a cost that is not spent, with `remaining` as it stands before it, in a form
    that every accelerator implements: the role is that of a look, with a cost of at least 1."""

    def run(state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(state, strategy.look(state, now, cost), 0, False)

    transform = Transform(strategy, "look", in_own_figures(strategy, run), _denying(strategy))
    transform.admits = bool
    return transform


@lru_cache(maxsize=1024)
def telling(strategy: Strategy) -> Transform[int]:
    """Returns the instant of the decision, for stores that decide by their own clock."""

    def run(state: Any, now: int, _cost: int) -> Outcome[int]:
        return Outcome(state, now, 0, False)

    return Transform(strategy, "tell", run, lambda now, _retry_after_ms: now)


def refunding(strategy: Strategy, charged_at: int) -> Transform[int]:
    """The transform that refunds what was charged at an instant."""

    def run(state: Any, now: int, cost: int) -> Outcome[int]:
        return strategy.refund(state, now, cost, charged_at)

    transform = Transform(
        strategy, "refund", in_own_figures(strategy, run), lambda _now, _retry_after_ms: 0
    )
    transform.argument = charged_at
    return transform


def charging(strategy: Strategy) -> Transform[Charged]:
    """The transform that charges what has been used, even if less is left."""

    def run(state: Any, now: int, cost: int) -> Outcome[Charged]:
        outcome = strategy.charge(state, now, cost)
        charged = Charged(outcome.result, strategy.excess(state, now, cost))
        return Outcome(outcome.state, charged, outcome.ttl_ms, outcome.persist)

    def refuse(now: int, retry_after_ms: int) -> Charged:
        return Charged(_denial(strategy, now, retry_after_ms), 0)

    transform = Transform(strategy, "charge", in_own_figures(strategy, run), refuse)
    transform.reverse = lambda charged_at: refunding(strategy, charged_at)
    if strategy.restricts:
        transform.decision_in = attrgetter("decision")
    return transform


def booking(strategy: Strategy, max_wait_ms: int) -> Transform[Booking]:
    """The transform that takes units before they are available."""

    def run(state: Any, now: int, cost: int) -> Outcome[Booking]:
        return strategy.book(state, now, cost, max_wait_ms)

    def refuse(now: int, retry_after_ms: int) -> Booking:
        return Booking(_denying(strategy)(now, retry_after_ms), retry_after_ms)

    transform = Transform(strategy, "book", in_own_figures(strategy, run), refuse)
    transform.argument = max_wait_ms
    transform.admits = _is_booked
    stands = _standing(strategy)
    transform.stands = lambda state, now: Booking(stands(state, now), 0)
    transform.reverse = lambda charged_at: refunding(strategy, charged_at)
    if strategy.restricts:
        transform.decision_in = attrgetter("decision")
    return transform


class _OnSlots(Transform[R]):
    """An operation on slots: calls the strategy's method that is named like the role, with the slot
    id, or ids, as its argument. Light to make, since every call on a slot makes one."""

    strategy: Strategy
    argument: Any
    native = None
    decision_in: Callable[[R], Any] = staticmethod(_none)
    admits: Callable[[R], bool] = staticmethod(_always)

    def __init__(self, strategy: Strategy, role: str, argument: str | tuple[str, ...]) -> None:
        self.strategy = strategy
        self.kind = strategy.name
        self.role = role
        self.lua = strategy.lua
        self.argument = argument

    def run(self, state: Any, now: int, _cost: int) -> Outcome[R]:
        outcome: Outcome[R] = getattr(self.strategy, self.role)(state, now, self.argument)
        return outcome

    def refuse(self, _now: int, _retry_after_ms: int) -> Any:
        return 0


class _Holding(_OnSlots[Decision]):
    admits = staticmethod(bool)

    def refuse(self, now: int, retry_after_ms: int) -> Decision:
        return _denial(self.strategy, now, retry_after_ms)

    def stands(self, state: Any, now: int) -> Decision:
        return self.strategy.standing(state, now)

    def reverse(self, _charged_at: int) -> Transform[int]:
        return releasing(self.strategy, self.argument)


class _Renewing(_OnSlots[tuple[Decision, ...]]):
    def refuse(self, now: int, retry_after_ms: int) -> tuple[Decision, ...]:
        return (_denial(self.strategy, now, retry_after_ms),) * len(self.argument)


def taking(strategy: Strategy, slot_id: str) -> Transform[Decision]:
    """The transform that takes a slot."""
    return _Holding(strategy, "take", slot_id)


def queueing(strategy: Strategy, slot_id: str) -> Transform[Decision]:
    """The transform that takes a slot in turn. Its denial writes a ticket if it is sent as a
    shadow; with other limits beside it, a shadow would have these charged."""
    transform = _Holding(strategy, "queue_up", slot_id)
    transform.denial_writes = True
    return transform


def ticketing(strategy: Strategy, slot_id: str) -> Transform[int]:
    """The transform that keeps a place in the queue for a slot."""
    return _OnSlots(strategy, "keep_ticket", slot_id)


def renewing(strategy: Strategy, slot_ids: tuple[str, ...]) -> Transform[tuple[Decision, ...]]:
    """The transform that renews slots. A slot that has expired does not keep the others from being
    renewed."""
    return _Renewing(strategy, "renew", slot_ids)


def releasing(strategy: Strategy, slot_id: str) -> Transform[int]:
    """The transform that gives a slot back."""
    return _OnSlots(strategy, "release", slot_id)


def operating(strategy: Strategy, role: str, *, admits: Callable[[int], bool]) -> Transform[int]:
    """An operation on what is held under an id, without an argument; `admits` says by its result
    whether other steps beside it are applied."""
    transform: Transform[int] = _OnSlots(strategy, role, "")
    transform.admits = admits
    return transform


def reclaiming(strategy: Strategy) -> Transform[int]:
    """The transform that counts the slots that expired without being given back."""

    def run(state: Any, now: int, _cost: int) -> Outcome[int]:
        return strategy.reclaim(state, now)

    return Transform(strategy, "reclaim", run, lambda _now, _retry_after_ms: 0)


def _is_booked(result: Booking) -> bool:
    return result.decision.allowed


def pausing(strategy: Strategy, until_ms: int) -> Transform[None]:
    """The transform that admits nothing before an instant."""

    def run(state: Any, now: int, _cost: int) -> Outcome[None]:
        return strategy.pause(state, now, until_ms)

    transform = Transform(
        strategy, "pause", in_own_figures(strategy, run), lambda _now, _retry_after_ms: None
    )
    transform.argument = until_ms
    return transform


def peeking(strategy: Strategy) -> Transform[Decision]:
    """The transform behind `peek`: it never writes."""

    def run(state: Any, now: int, _cost: int) -> Outcome[Decision]:
        return Outcome(state, strategy.peek(state, now), 0, False)

    return Transform(strategy, "peek", in_own_figures(strategy, run), checking(strategy).refuse)


def finding(strategy: Strategy) -> Transform[bool]:
    """The transform that returns whether a key has a state. It never writes."""

    def run(state: Any, _now: int, _cost: int) -> Outcome[bool]:
        return Outcome(state, state is not None, 0, False)

    return Transform(strategy, "peek", run, lambda _now, _retry_after_ms: False)


def forecasting(strategy: Strategy) -> Transform[Forecast]:
    """The transform behind `forecast`: it never writes."""

    def run(state: Any, now: int, cost: int) -> Outcome[Forecast]:
        return Outcome(state, strategy.forecast(state, now, cost), 0, False)

    def refuse(now: int, retry_after_ms: int) -> Forecast:
        return Forecast(0, now + retry_after_ms, now + retry_after_ms)

    return Transform(strategy, "forecast", in_own_figures(strategy, run), refuse)


CLEAR: Transform[None] = Transform(
    None,
    "clear",
    lambda _state, _now, _cost: Outcome(None, None, 0, True),
    lambda _now, _retry_after_ms: None,
)
"""Forgets a key."""


# Between two attempts others may take what was left; the last attempt asks for the bare need.
_ATTEMPTS = 8


class Grant(NamedTuple):
    """The result of leasing: `capacity` units, 0 for a denial, taken at the instant `now` of the
    clock that decides. `decision` is that of the last attempt."""

    capacity: int
    decision: Decision
    now: int


def bargain(want: int, need: int) -> Generator[int, Decision, tuple[int, Decision]]:
    """Yields the cost to try next and is sent the decision. Returns the cost that was admitted, 0
    if none, and the last decision."""
    cost = want
    for attempt in range(_ATTEMPTS):
        decision = yield cost
        if decision.allowed:
            return cost, decision
        if cost == need:
            break
        left = decision.remaining
        cost = left if need < left < cost and attempt < _ATTEMPTS - 2 else need
    return 0, decision


def leasing(strategy: Strategy, need: int) -> Transform[Grant]:
    """The transform behind a lease: `cost` is how much is wanted, `need` the least that is
    useful."""

    def run(state: Any, now: int, want: int) -> Outcome[Grant]:
        deal = bargain(max(want, need), need)
        cost = next(deal)
        while True:
            outcome = strategy.check(state, now, cost)
            try:
                cost = deal.send(outcome.result)
            except StopIteration as settled:
                taken, decision = settled.value
                grant = Grant(taken, decision, now)
                return Outcome(outcome.state, grant, outcome.ttl_ms, outcome.persist)

    def refuse(now: int, retry_after_ms: int) -> Grant:
        denial = Decision(False, strategy.limit, 0, now + retry_after_ms, retry_after_ms)
        return Grant(0, denial, now)

    transform = Transform(strategy, "lease", in_own_figures(strategy, run), refuse)
    transform.need = need
    transform.decision_in = attrgetter("decision")
    return transform
