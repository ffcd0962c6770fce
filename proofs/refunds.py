"""How much a key with refunds can be used for within any span, by looking at every order of events.

`python -m proofs.refunds` explores each case below and prints what it found as a table. It fails if
a claim does.

The strategies are the real ones, `gcra` and `token_bucket`, with small figures. What can happen, at
any time and in any order: time passes, by half a unit; a request is admitted; units are reserved,
as long as no more than `open_units` are open; a charge is cancelled, or settled for less or more.

The claim: of the units charged in any span of s ms, those that were not given back are at most

    burst + open_units - 1 + s / T

where `open_units` is at least 1, and one burst more where charges are settled for more than they
reserved: that is how much a key may owe. The bound is reached, so it is the smallest: with one
burst open at a time, 2 * burst - 1 within an instant. The reason: each unit charged moves the TAT
by T, a refund moves it back by no more than its units, and the TAT never runs ahead of now by more
than the burst. So charges less all refunds are at most burst + s / T. But a refund within the span
may be of a charge from before the span: once for each unit that was open when the span began, and
whose charge time had not replenished.

Without a limit on refunds, a charge counts as open for as long as its holder likes; that flaw is
refuted below. With the limit, a charge counts no longer than the burst takes to be replenished,
unless its holder cancels it before and reserves the same anew. No rule can tell these two from an
honest cancel and an honest request, since the state of a key is a single instant. So the units that
are open at a time are part of the bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from penstock import Strategy, gcra, token_bucket
from penstock.core._decision import Outcome

__all__ = ["CASES", "REFUTED", "Case", "Explored", "explore", "table"]

# All instants are told from this one, at which every step is taken.
_NOW = 1_000_000
_UNIT_MS = 2


@dataclass(frozen=True)
class Case:
    """One key. `limits_refunds` is False for the flaw that is to be refuted."""

    kind: str
    burst: int
    open_units: int
    overdraws: bool = False
    limits_refunds: bool = True

    @property
    def bound(self) -> int:
        """The most units within one instant, as claimed."""
        owed = self.burst if self.overdraws else 0
        return self.burst + owed + max(0, self.open_units - 1)

    @property
    def strategy(self) -> Strategy:
        return _strategy(self.kind, self.burst)


@cache
def _strategy(kind: str, burst: int) -> Strategy:
    if kind == "gcra":
        return gcra(1000 // _UNIT_MS, 1_000, burst)
    return token_bucket(burst, 1000 / _UNIT_MS)


class Open(NamedTuple):
    """A charge that is open: its units, and by which instant it is refunded, from now."""

    units: int
    counted_in: int


class State(NamedTuple):
    """`kept` is the strategy's state, its instants told from now. `used[i]` is the most that was
    used within a span that began before the i-th open charge, and after the one before it: units
    less time, in ms at the pace; the last of them is for spans that began after all. None where a
    span that began later is never worse."""

    kept: Any
    charges: tuple[Open, ...]
    used: tuple[int | None, ...]


_START = State(None, (), (0,))

CASES: tuple[Case, ...] = (
    *(Case(kind, 2, units) for kind in ("gcra", "token_bucket") for units in (0, 1, 2, 3)),
    Case("gcra", 3, 2),
    Case("gcra", 3, 3),
    Case("token_bucket", 3, 2),
    Case("gcra", 2, 1, overdraws=True),
    Case("gcra", 2, 2, overdraws=True),
    Case("token_bucket", 2, 1, overdraws=True),
    Case("token_bucket", 2, 2, overdraws=True),
)

REFUTED = Case("gcra", 2, 1, limits_refunds=False)


class Explored(NamedTuple):
    """`most` is the most that was used within a span, less what its length allows; `way` is the
    shortest to it. `stopped` says that it was more than claimed, which ended the exploration."""

    case: Case
    states: int
    steps: int
    most: int
    way: tuple[str, ...]
    stopped: bool

    @property
    def holds(self) -> bool:
        """The bound is never exceeded, and it is reached."""
        return not self.stopped and self.most == self.case.bound


def explore(case: Case) -> Explored:
    """Look at every state; stop at the first span in which more was used than claimed."""
    parents: dict[State, tuple[State, str] | None] = {_START: None}
    frontier, peak, most, steps = [_START], _START, 0, 0
    while frontier and most <= case.bound:
        reached = []
        for state in frontier:
            for said, after in _successors(case, state):
                steps += 1
                if after in parents:
                    continue
                parents[after] = state, said
                reached.append(after)
                used = max(each for each in after.used if each is not None) // _UNIT_MS
                if used > most:
                    most, peak = used, after
        frontier = reached
    way = _way(parents, peak)
    return Explored(case, len(parents), steps, most, way, most > case.bound)


def _way(parents: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    told = []
    while (before := parents[state]) is not None:
        state, said = before
        told.append(said)
    return tuple(reversed(told))


def _successors(case: Case, state: State) -> Iterator[tuple[str, State]]:
    yield "time passes", _later(case, state)
    for cost in range(1, case.burst + 1):
        taken = _checked(case, state.kept, cost)
        if taken is not None:
            yield f"uses {cost}", _cut(case, state._replace(kept=taken[0], used=_more(state, cost)))
    free = case.open_units - sum(_is_fresh(case, each) * each.units for each in state.charges)
    for cost in range(1, min(free, case.burst) + 1):
        taken = _checked(case, state.kept, cost)
        if taken is not None:
            charges = (*state.charges, Open(cost, taken[1]))
            used = (*_more(state, cost), 0)
            yield f"reserves {cost}", _cut(case, State(taken[0], charges, used))
    for place, charge in enumerate(state.charges):
        for back in range(1, charge.units + 1):
            said = f"gives back {back} of charge {place + 1}"
            yield said, _cut(case, _settled(case, state, place, back))
        if case.overdraws:
            for more in (1, case.burst):
                said = f"settles charge {place + 1} for {more} more"
                yield said, _cut(case, _overdrawn(case, state, place, more))


def _later(case: Case, state: State) -> State:
    used = tuple([None if each is None else each - 1 for each in state.used])
    charges = tuple([Open(each.units, each.counted_in - 1) for each in state.charges])
    return _cut(case, State(_aged(case.kind, state.kept), charges, used))


def _aged(kind: str, kept: Any) -> Any:
    """As it is told a millisecond later."""
    if kept is None:
        return None
    if kind == "gcra":
        return kept - 1 if kept > 1 else None
    tokens, last = kept
    return tokens, last - 1


@cache
def _checked(case: Case, kept: Any, cost: int) -> tuple[Any, int] | None:
    """The state after a check, and by which instant it is refunded; None if it is denied."""
    outcome = case.strategy.check(_shifted(case.kind, kept, _NOW), _NOW, cost)
    if not outcome.result.allowed:
        return None
    counted_at = case.strategy.counted_at(outcome.result, _NOW)
    return _of(case, outcome), counted_at - _NOW


@cache
def _refunded(case: Case, kept: Any, cost: int, counted_in: int) -> tuple[Any, int]:
    """The state after a refund, and how many units came back."""
    counted_at = _NOW + (counted_in if case.limits_refunds else 0)
    outcome = case.strategy.refund(_shifted(case.kind, kept, _NOW), _NOW, cost, counted_at)
    return (_of(case, outcome) if outcome.persist else kept), outcome.result


@cache
def _charged(case: Case, kept: Any, cost: int) -> tuple[Any, int]:
    """The state after an unconditional charge, and how many units were charged."""
    state = _shifted(case.kind, kept, _NOW)
    units = cost - case.strategy.excess(state, _NOW, cost)
    return _of(case, case.strategy.charge(state, _NOW, cost)), units


def _of(case: Case, outcome: Outcome[Any]) -> Any:
    return _settled_down(case, _shifted(case.kind, outcome.state, -_NOW))


def _settled_down(case: Case, kept: Any) -> Any:
    """One state for all that mean the same: a bucket is credited up to now, without roundings."""
    if case.kind == "gcra" or kept is None:
        return kept
    tokens, last = kept
    tokens = round(tokens - last / _UNIT_MS, 6)
    return None if tokens >= case.burst else (tokens, 0)


def _shifted(kind: str, kept: Any, ms: int) -> Any:
    if kept is None:
        return None
    if kind == "gcra":
        return kept + ms
    return kept[0], kept[1] + ms


def _more(state: State, units: int) -> tuple[int | None, ...]:
    """A span that begins now, with nothing used before, is among the last."""
    *older, last = state.used
    assert last is not None
    return tuple(
        [None if each is None else each + units * _UNIT_MS for each in (*older, max(last, 0))]
    )


def _settled(case: Case, state: State, place: int, back: int) -> State:
    charge = state.charges[place]
    kept, units = _refunded(case, state.kept, back, charge.counted_in)
    # Spans that began after the charge do not contain it.
    used = tuple(
        [
            each - units * _UNIT_MS if each is not None and gap <= place else each
            for gap, each in enumerate(state.used)
        ]
    )
    return _closed(State(kept, state.charges, used), place)


def _overdrawn(case: Case, state: State, place: int, more: int) -> State:
    kept, units = _charged(case, state.kept, more)
    return _closed(state._replace(kept=kept, used=_more(state, units)), place)


def _closed(state: State, place: int) -> State:
    """Without a charge: spans on both sides of it are alike from now on."""
    both = [each for each in state.used[place : place + 2] if each is not None]
    used = (*state.used[:place], max(both, default=None), *state.used[place + 2 :])
    return State(state.kept, state.charges[:place] + state.charges[place + 1 :], used)


def _is_fresh(case: Case, charge: Open) -> bool:
    """Whether any of it may still come back."""
    return charge.counted_in + case.burst * _UNIT_MS > 0


def _cut(case: Case, state: State) -> State:
    """One state for all that have the same future."""
    for place in reversed(range(len(state.charges))):
        if case.limits_refunds and not _is_fresh(case, state.charges[place]):
            state = _closed(state, place)
    kept = _settled_down(case, state.kept)
    worst = 0
    used: list[int | None] = []
    for each in reversed(state.used):
        # Whatever comes, an earlier span never gains on a later one. The last is always there.
        is_worse = not used or (each is not None and each > worst)
        used.append(max(each or 0, 0) if not used else each if is_worse else None)
        worst = max(worst, used[-1] or 0)
    return State(kept, state.charges, tuple(reversed(used)))


def table(results: Sequence[Explored]) -> str:
    """As it stands in proofs/README.md."""
    rows = [
        "| strategy | burst | open at once | settled for more | states | transitions | most used |",
        "|---|--:|--:|---|--:|--:|--:|",
    ]
    for result in results:
        case = result.case
        cells = (
            case.kind,
            str(case.burst),
            str(case.open_units),
            "yes" if case.overdraws else "no",
            f"{result.states:,}",
            f"{result.steps:,}",
            f"{result.most} of {case.bound}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    results = [explore(case) for case in CASES]
    print(table(results))
    failed = [result for result in results if not result.holds]
    for result in failed:
        print(f"REFUTED: {result.case}: {result.most}\n  " + "\n  ".join(result.way))
    flawed = explore(REFUTED)
    print("without a limit on refunds:\n  " + "\n  ".join(flawed.way))
    return 0 if flawed.stopped and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
