"""Transforms: what a store is asked to do to a key, and several of them as one decision.

A `Transform` is a pure transition on its way to a store: the strategy's `check`, or another one of
its methods with the argument that goes with it. A `Step` is one of them with its key and cost;
`decide_all` is the rule by which several steps become one decision: everything is written if every
step that is no shadow allowed it, else nothing is. Stores that can write several keys at once run
it between their reads and writes, and accelerators repeat it; `in_order` is for those that cannot:
it charges one key after the other and gives back what it charged when a later one denies.

A lease is a transform, too: a check of a larger cost, with one twist. When less than wanted is
left but enough for the request that asks, what is left is taken, so that no budget is stranded at
the end of a window. `bargain` holds that rule once; the transform runs it against the oracle inside
an atomic `apply`, and a store with a faster `check` may run it against that, one atomic check at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from ._decision import Booking, Decision, Forecast, Outcome
from ._errors import PenstockError
from ._lua import LuaAccelerator
from ._strategy import Strategy

__all__ = [
    "CLEAR",
    "READING",
    "Grant",
    "PoolRenewals",
    "Step",
    "Transform",
    "bargain",
    "booking",
    "charging",
    "checking",
    "decide_all",
    "forecasting",
    "in_order",
    "leasing",
    "looked_at",
    "looking",
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


def _none(_result: Any) -> None:
    return None


def _always(_result: Any) -> bool:
    return True


class Transform(Generic[R]):
    """A pure transition on its way to a store, with the accelerators it may be swapped for.

    `run(state, now, cost)` yields an Outcome. `strategy` is whose state it reads and `kind` that
    one's name. `lua` and `native` are its accelerators; `role` says what they have to do to stand
    for `run`: "check", "lease" (see `Grant`), "refund", "charge", "book" and "pause", with their
    `argument`, or one of `READING`, which never write.
    `refuse(now, retry_after_ms)` is the answer of a store that has no room for a new key, and
    `decision_in(result)` the decision about the key, for a store that has to choose which keys it
    can do without; None where a result tells nothing of the kind. `admits(result)` says whether
    it lets a request of several steps through, and `reverse(charged_at)` is the transform that
    gives back what it took; None for one that takes nothing.
    """

    argument: int | str | tuple[str, ...] = 0
    decision_in: Callable[[R], Any] = staticmethod(_none)
    admits: Callable[[R], bool] = staticmethod(_always)
    reverse: Callable[[int], Transform[int]] | None = None
    # For the role "lease": the least that helps, where `cost` is what is wanted.
    need: int = 1
    # What the compiled path made of `native`, once it has seen this transform.
    kernel: Any = None

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

    def needs_room(self, now: int, cost: int) -> bool:
        """Whether a check of a new key would be kept. Where there is no room for it, those who only
        look are told what such a check would be."""
        return self.strategy is not None and self.strategy.check(None, now, cost).persist

    def __repr__(self) -> str:
        return f"<Transform {self.role} of {self.strategy!r}>"


def _itself(result: Any) -> Any:
    return result


def checking(strategy: Strategy) -> Transform[Decision]:
    """The transform behind `check`."""
    transform = Transform(strategy, "check", strategy.check, _denying(strategy))
    transform.admits = bool
    transform.reverse = lambda charged_at: refunding(strategy, charged_at)
    if strategy.restricts:
        transform.decision_in = _itself
    return transform


def _denial(strategy: Strategy, now: int, retry_after_ms: int) -> Decision:
    return Decision(False, strategy.limit, 0, now + retry_after_ms, retry_after_ms)


def _denying(strategy: Strategy) -> Callable[[int, int], Decision]:
    return partial(_denial, strategy)


def trying(transform: Transform[R]) -> Transform[R]:
    """What the transform would answer, with nothing written."""

    def run(state: Any, now: int, cost: int) -> Outcome[R]:
        return Outcome(state, transform.run(state, now, cost).result, 0, False)

    trial = Transform(transform.strategy, "try", run, transform.refuse)
    trial.admits = transform.admits
    return trial


def looking(strategy: Strategy) -> Transform[Decision]:
    """The decision on a cost that is not spent, with what is there before it as `remaining`, in the
    one form that every accelerator can repeat. A step of cost 0 becomes such a look at one unit."""

    def run(state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(state, strategy.look(state, now, cost), 0, False)

    transform = Transform(strategy, "look", run, _denying(strategy))
    transform.admits = bool
    return transform


@lru_cache(maxsize=1024)
def telling(strategy: Strategy) -> Transform[int]:
    """The instant of the decision, where it is the store's clock that decides."""

    def run(state: Any, now: int, _cost: int) -> Outcome[int]:
        return Outcome(state, now, 0, False)

    return Transform(strategy, "tell", run, lambda now, _retry_after_ms: now)


def refunding(strategy: Strategy, charged_at: int) -> Transform[int]:
    """The transform that gives back what was charged at an instant."""

    def run(state: Any, now: int, cost: int) -> Outcome[int]:
        return strategy.refund(state, now, cost, charged_at)

    transform = Transform(strategy, "refund", run, lambda _now, _retry_after_ms: 0)
    transform.argument = charged_at
    return transform


def charging(strategy: Strategy) -> Transform[Decision]:
    """The transform that takes what has been used, whatever is left."""
    transform = Transform(strategy, "charge", strategy.charge, _denying(strategy))
    transform.reverse = lambda charged_at: refunding(strategy, charged_at)
    if strategy.restricts:
        transform.decision_in = _itself
    return transform


def booking(strategy: Strategy, max_wait_ms: int) -> Transform[Booking]:
    """The transform that takes units which may not be there yet."""

    def run(state: Any, now: int, cost: int) -> Outcome[Booking]:
        return strategy.book(state, now, cost, max_wait_ms)

    def refuse(now: int, retry_after_ms: int) -> Booking:
        return Booking(_denying(strategy)(now, retry_after_ms), retry_after_ms)

    transform = Transform(strategy, "book", run, refuse)
    transform.argument = max_wait_ms
    transform.admits = _is_booked
    transform.reverse = lambda charged_at: refunding(strategy, charged_at)
    if strategy.restricts:
        transform.decision_in = attrgetter("decision")
    return transform


class _OnSlots(Transform[R]):
    """What is done to the slot of an id, or to several, which are its argument: the method of the
    strategy that bears the name of the role. One is made by every call that has a slot."""

    strategy: Strategy
    argument: Any

    def __init__(self, strategy: Strategy, role: str, argument: str | tuple[str, ...]) -> None:
        self.strategy = strategy
        self.kind = strategy.name
        self.role = role
        self.lua = strategy.lua
        self.native = strategy.native
        self.argument = argument

    def run(self, state: Any, now: int, _cost: int) -> Outcome[R]:
        outcome: Outcome[R] = getattr(self.strategy, self.role)(state, now, self.argument)
        return outcome

    def refuse(self, _now: int, _retry_after_ms: int) -> Any:
        return 0


class _Holding(_OnSlots[Decision]):
    admits = bool

    def refuse(self, now: int, retry_after_ms: int) -> Decision:
        return _denial(self.strategy, now, retry_after_ms)

    def reverse(self, _charged_at: int) -> Transform[int]:
        return releasing(self.strategy, self.argument)


class _Renewing(_OnSlots[tuple[Decision, ...]]):
    def refuse(self, now: int, retry_after_ms: int) -> tuple[Decision, ...]:
        return (_denial(self.strategy, now, retry_after_ms),) * len(self.argument)


def taking(strategy: Strategy, slot_id: str) -> Transform[Decision]:
    """The transform that holds a slot."""
    return _Holding(strategy, "take", slot_id)


def queueing(strategy: Strategy, slot_id: str) -> Transform[Decision]:
    """The transform that holds a slot in turn. As a shadow, a denial is written too, which keeps a
    ticket; beside other limits, that would let them be charged."""
    return _Holding(strategy, "queue_up", slot_id)


def ticketing(strategy: Strategy, slot_id: str) -> Transform[int]:
    """The transform that keeps a place among those who wait for a slot."""
    return _OnSlots(strategy, "keep_ticket", slot_id)


def renewing(strategy: Strategy, slot_ids: tuple[str, ...]) -> Transform[tuple[Decision, ...]]:
    """The transform that goes on holding slots. One that was lost does not keep the others from
    being renewed."""
    return _Renewing(strategy, "renew", slot_ids)


def releasing(strategy: Strategy, slot_id: str) -> Transform[int]:
    """The transform that gives a slot back."""
    return _OnSlots(strategy, "release", slot_id)


def reclaiming(strategy: Strategy) -> Transform[int]:
    """The transform that counts the slots that were not given back."""

    def run(state: Any, now: int, _cost: int) -> Outcome[int]:
        return strategy.reclaim(state, now)

    return Transform(strategy, "reclaim", run, lambda _now, _retry_after_ms: 0)


def _is_booked(result: Booking) -> bool:
    return result.decision.allowed


def pausing(strategy: Strategy, until_ms: int) -> Transform[None]:
    """The transform that lets nothing in before an instant."""

    def run(state: Any, now: int, _cost: int) -> Outcome[None]:
        return strategy.pause(state, now, until_ms)

    transform = Transform(strategy, "pause", run, lambda _now, _retry_after_ms: None)
    transform.argument = until_ms
    return transform


def peeking(strategy: Strategy) -> Transform[Decision]:
    """The transform behind `peek`: it never writes."""

    def run(state: Any, now: int, _cost: int) -> Outcome[Decision]:
        return Outcome(state, strategy.peek(state, now), 0, False)

    return Transform(strategy, "peek", run, checking(strategy).refuse)


def forecasting(strategy: Strategy) -> Transform[Forecast]:
    """The transform behind `forecast`: it never writes."""

    def run(state: Any, now: int, cost: int) -> Outcome[Forecast]:
        return Outcome(state, strategy.forecast(state, now, cost), 0, False)

    def refuse(now: int, retry_after_ms: int) -> Forecast:
        return Forecast(0, now + retry_after_ms, now + retry_after_ms)

    return Transform(strategy, "forecast", run, refuse)


CLEAR: Transform[None] = Transform(
    None,
    "clear",
    lambda _state, _now, _cost: Outcome(None, None, 0, True),
    lambda _now, _retry_after_ms: None,
)
"""Forgets a key."""


class Step(NamedTuple):
    """One part of a request that several limits have to admit, for `Store.apply_all`.

    `transform` is run on the state of `key` with `cost`; a cost of 0 only looks. A `shadow` never
    denies the request; it is charged when the request is admitted and it would have admitted it
    itself.
    """

    key: str
    transform: Transform[Any]
    cost: int = 1
    shadow: bool = False


class PoolRenewals:
    """Slots to renew in one call, each as its key, its strategy and its id: `steps` has one for
    each pool, so that its state is gone through once."""

    def __init__(self, wanted: Iterable[tuple[str, Strategy, str]]) -> None:
        pools: dict[tuple[str, Strategy], tuple[int, list[str]]] = {}
        # For each slot, which step it is part of, and where.
        self._places: list[tuple[int, int]] = []
        for key, strategy, slot_id in wanted:
            number, ids = pools.setdefault((key, strategy), (len(pools), []))
            self._places.append((number, len(ids)))
            ids.append(slot_id)
        self.steps: list[Step] = [
            Step(key, renewing(strategy, tuple(ids))) for (key, strategy), (_, ids) in pools.items()
        ]

    def answers(self, results: Sequence[tuple[Decision, ...]]) -> list[Decision]:
        """Those to each slot, in order, from what the store answered to the steps."""
        return [results[number][place] for number, place in self._places]


def looked_at(steps: Sequence[Any]) -> list[Step]:
    """The same steps, where a cost of 0 has become a look."""
    return [
        Step(key, transform, cost, shadow)
        if cost
        else Step(key, looking(transform.strategy), 1, shadow)
        for key, transform, cost, shadow in steps
    ]


def decide_all(
    steps: Sequence[Step], read: Callable[[str, Transform[Any]], Any], now_for: Callable[[str], int]
) -> tuple[list[Any], dict[str, tuple[Transform[Any], Outcome[Any]]]]:
    """The results in order, and what is to be written under which key: nothing, if a step that is
    no shadow denied. A key that is named twice is decided on what its earlier step left.

    `read(key, transform)` gives the state of a key, and is asked once per key; `now_for(key)` the
    instant to decide it at.
    """
    states: dict[str, Any] = {}
    writes: dict[str, tuple[Transform[Any], Outcome[Any]]] = {}
    results = []
    admitted = True
    for key, transform, cost, shadow in steps:
        if key not in states:
            states[key] = read(key, transform)
        outcome = transform.run(states[key], now_for(key), cost)
        results.append(outcome.result)
        admitted = admitted and (shadow or transform.admits(outcome.result))
        if outcome.persist:
            states[key] = outcome.state
            writes[key] = transform, outcome
    return results, writes if admitted else {}


def in_order(steps: Sequence[Step], now: int) -> Generator[Step, Any, list[Any]]:
    """For stores that cannot write several keys at once: yields the steps to apply and is sent
    their results. Those that may deny come before the shadows; when one of them does, or fails,
    what was charged before it is given back, and the others are only tried. So nobody is admitted
    too often, and somebody may be denied for a moment what is given back then."""
    results: list[Any] = [None] * len(steps)
    charged: list[Step] = []
    admitted = True
    places = sorted(range(len(steps)), key=lambda place: steps[place].shadow)
    try:
        for place in places:
            step = steps[place]
            transform = step.transform
            if not admitted and transform.role not in READING:
                step = step._replace(transform=trying(transform))
            results[place] = yield step
            if not transform.admits(results[place]):
                if not step.shadow and admitted:
                    admitted = False
                    yield from _give_back(charged, now)
            elif admitted and transform.reverse is not None:
                charged.append(step)
    except Exception:
        with suppress(PenstockError):
            yield from _give_back(charged, now)
        raise
    return results


def _give_back(charged: list[Step], now: int) -> Generator[Step, Any, None]:
    while charged:
        step = charged.pop()
        assert step.transform.reverse is not None
        yield Step(step.key, step.transform.reverse(now), step.cost)


# Others may take what was left between two attempts; after this many the bare need decides.
_ATTEMPTS = 8


class Grant(NamedTuple):
    """`capacity` units, taken at `now` on the clock that decides; 0 is a refusal. `decision` is
    the store's answer to the last attempt."""

    capacity: int
    decision: Decision
    now: int


def bargain(want: int, need: int) -> Generator[int, Decision, tuple[int, Decision]]:
    """Yields the cost to try next and is sent the decision; returns what was taken."""
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
    """The transform behind a lease: `cost` is how much is wanted, `need` the least that helps."""

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

    transform = Transform(strategy, "lease", run, refuse)
    transform.need = need
    transform.decision_in = attrgetter("decision")
    return transform
