"""Steps: several transforms as one decision.

A `Step` is a transform with its key and cost. `decide_all` is the rule for several steps: if every
step that is not a shadow admits, everything is written. Otherwise nothing is written, and the steps
that would have admitted return the figures as they stand (`as_they_stand`). Stores that can write
several keys at once run it between their reads and writes, and accelerators implement the same
rule. `in_order` is for the other stores: it charges one key after the other, and refunds what it
charged when a later step denies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ._decision import Booking, Charged, Decision, Outcome
from ._errors import PenstockError
from ._strategy import Strategy
from ._transform import READING, Transform, asking, looking, renewing, telling, trying

__all__ = [
    "PoolRenewals",
    "Step",
    "as_they_stand",
    "decide_all",
    "in_order",
    "look_at",
    "looked_at",
    "reversal",
    "timed",
]


class Step(NamedTuple):
    """One part of a request on several limits, for `Store.apply_all`.

    `transform` is run on the state of `key` with `cost`; a cost of 0 only looks. A `shadow` never
    denies the request; it is charged if the request is admitted and the shadow itself admits it.
    """

    key: str
    transform: Transform[Any]
    cost: int = 1
    shadow: bool = False


class PoolRenewals:
    """Slots to renew in one call, each given as key, strategy and id. `steps` has one step per
    pool, so that the state of a pool is read once."""

    def __init__(self, wanted: Iterable[tuple[str, Strategy, str]]) -> None:
        pools: dict[tuple[str, Strategy], tuple[int, list[str]]] = {}
        # For each slot, the number of its step and its place in that.
        self._places: list[tuple[int, int]] = []
        for key, strategy, slot_id in wanted:
            number, ids = pools.setdefault((key, strategy), (len(pools), []))
            self._places.append((number, len(ids)))
            ids.append(slot_id)
        self.steps: list[Step] = [
            Step(key, renewing(strategy, tuple(ids))) for (key, strategy), (_, ids) in pools.items()
        ]

    def answers(self, results: Sequence[tuple[Decision, ...]]) -> list[Decision]:
        """The decision on each slot, in order, from the results of the steps."""
        return [results[number][place] for number, place in self._places]


def timed(key: str, transform: Transform[Any], cost: int) -> tuple[Step, Step]:
    """One step, and one that returns the instant at which it was decided."""
    assert transform.strategy is not None
    return Step(key, transform, cost), Step(key, telling(transform.strategy))


def looked_at(steps: Sequence[Any]) -> list[Step]:
    """The same steps, with those of cost 0 replaced by looks."""
    return [
        Step(key, transform, cost, shadow)
        if cost or transform.role == "look"
        else look_at(key, transform.strategy, shadow)
        for key, transform, cost, shadow in steps
    ]


def look_at(key: str, strategy: Strategy, shadow: bool) -> Step:
    """The step of a limit at cost 0."""
    if strategy.is_gate:
        return Step(key, asking(strategy), 1, shadow)
    return Step(key, looking(strategy), 0, shadow)


def decide_all(
    steps: Sequence[Step], read: Callable[[str, Transform[Any]], Any], now_for: Callable[[str], int]
) -> tuple[list[Any], dict[str, tuple[Transform[Any], Outcome[Any]]]]:
    """Returns the results in order, and what to write, by key: nothing if a step that is not a
    shadow denied. A second step on a key sees the state that the first one left.

    `read(key, transform)` returns the state of a key, and is called once per key; `now_for(key)`
    returns the instant at which it is decided.
    """
    found: dict[str, Any] = {}
    writes: dict[str, tuple[Transform[Any], Outcome[Any]]] = {}
    results = []
    admitted = True
    for key, transform, cost, shadow in steps:
        if key not in found:
            found[key] = read(key, transform)
        state = writes[key][1].state if key in writes else found[key]
        outcome = transform.run(state, now_for(key), cost)
        results.append(outcome.result)
        admitted = admitted and (shadow or transform.admits(outcome.result))
        if outcome.persist:
            writes[key] = transform, outcome
    if admitted:
        return results, writes
    return as_they_stand(steps, results, lambda key, _: found[key], now_for), {}


def as_they_stand(
    steps: Sequence[tuple[str, Transform[Any], int, bool]],
    results: Sequence[Any],
    read: Callable[[str, Transform[Any]], Any],
    now_for: Callable[[str], int],
) -> list[Any]:
    """The results of a denied request: those of the steps that would have admitted it are replaced
    by what their limits show with nothing charged."""
    return [
        result
        if transform.stands is None or not transform.admits(result)
        else transform.stands(read(key, transform), now_for(key))
        for (key, transform, _, _), result in zip(steps, results, strict=True)
    ]


def in_order(steps: Sequence[Step], now: int) -> Generator[Step, Any, list[Any]]:
    """For stores that cannot write several keys at once: yields the steps to apply and is sent
    their results. Shadows come last, unless their key is named again by a step that may deny. When
    a step denies or fails, what was charged before it is taken back, and the remaining steps only
    look. So never too much is admitted; but another caller may be denied units that are given back
    a moment later. The results of what was taken back are the figures after that."""
    results: list[Any] = [None] * len(steps)
    charged: list[_Charged] = []
    admitted = True
    try:
        for place in _denying_first(steps):
            step = steps[place]
            transform = step.transform
            if not admitted and transform.role not in READING:
                step = step._replace(transform=trying(transform))
            taken = None
            if admitted and transform.reverse is not None:
                taken = _Charged(step, now, place)
            results[place] = yield step if taken is None else taken.step
            if not transform.admits(results[place]):
                if not step.shadow and admitted:
                    admitted = False
                    yield from _take_back(charged, results)
            elif taken is not None:
                taken.answer = results[place]
                charged.append(taken)
    except Exception:
        with suppress(PenstockError):
            yield from _take_back(charged)
        raise
    return results


def _denying_first(steps: Sequence[Step]) -> list[int]:
    """The places of the steps, shadows last; those of one key stay in their order."""
    last = {step.key: place for place, step in enumerate(steps) if not step.shadow}
    return sorted(range(len(steps)), key=lambda place: place > last.get(steps[place].key, -1))


def _take_back(
    charged: list[_Charged], results: list[Any] | None = None
) -> Generator[Step, Any, None]:
    """The steps that take back what was charged, the last one first; then the figures that are
    left go into the results."""
    reversed_last: dict[str, _Charged] = {}
    everything = charged.copy()
    while charged:
        taken = charged.pop()
        yield taken.reversed()
        reversed_last[taken.step.key] = taken
    if results is None:
        return
    for taken in everything:
        if taken.transform.stands is None:
            continue
        if reversed_last[taken.step.key] is not taken or taken.figures is None:
            # Another step on the same key was taken back later, or an accelerator did it.
            assert taken.transform.strategy is not None
            look = Step(taken.step.key, looking(taken.transform.strategy), 0)
            left = yield look
            taken.figures = Booking(left, 0) if type(taken.answer) is Booking else left
        results[taken.place] = taken.figures


class _Charged:
    """A step that may have to be taken back; `step` is what to apply.

    It notes the state that it found and the one that it left. Where nobody has written since, the
    former is put back: a refund goes by the instant of a charge, and that is not the window in
    which it was counted when the clock has gone back. Else the units are refunded: where others
    have written, where an accelerator decided, which notes nothing, and where no state was found,
    since one that had expired would count again if the clock goes back. Then the key remembers the
    instant, without units: a clock that goes back behind it is served by what that instant allows.
    """

    answer: Any = None
    """The result of the step."""
    figures: Any = None
    """What its limit shows after it was taken back; None if an accelerator did that."""

    def __init__(self, step: Step, now: int, place: int) -> None:
        self._step = step
        self.place = place
        self.transform = step.transform
        self._at = now
        self._found: Any = None
        self._left: Outcome[Any] | None = None
        self.step = step._replace(transform=_running(step.transform, self._run))

    def _run(self, state: Any, now: int, cost: int) -> Outcome[Any]:
        outcome = self.transform.run(state, now, cost)
        self._at, self._found, self._left = now, state, outcome
        return outcome

    def reversed(self) -> Step:
        """The step that takes it back."""
        refund = reversal(self._step, self.answer, self._at)
        assert refund is not None
        found, left, stands = self._found, self._left, self.transform.stands

        def run(state: Any, now: int, cost: int) -> Outcome[int]:
            if left is not None and found is not None and state == left.state:
                outcome = Outcome(found, cost, left.ttl_ms, True)
            else:
                outcome = refund.transform.run(state, now, cost)
            if stands is not None:
                self.figures = stands(outcome.state if outcome.persist else state, now)
            return outcome

        return refund._replace(transform=_running(refund.transform, run))


def reversal(step: Step, answer: Any, charged_at: int) -> Step | None:
    """The step that takes back one that was answered like this; None if it takes nothing."""
    transform, cost = step.transform, step.cost
    if transform.reverse is None:
        return None
    decision = transform.decision_in(answer)
    if decision is not None and transform.strategy is not None:
        charged_at = transform.strategy.counted_at(decision, charged_at)
    if type(answer) is Charged:
        cost -= answer.excess
    return Step(step.key, transform.reverse(charged_at), cost)


def _running(transform: Transform[Any], run: Callable[..., Outcome[Any]]) -> Transform[Any]:
    """The same transform, with this for its function."""
    from copy import copy  # of which `import penstock` has no need

    changed = copy(transform)
    changed.run = run
    return changed
