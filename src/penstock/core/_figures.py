"""States beside the figures that they were written with.

The figures of a limit may change while it has state: by a plan, an override, a reload, or another
constructor over the same store. The state of some strategies means nothing without its figures: a
TAT in ms is another number of units at another pace. Such a strategy has `figures`, and a state of
it is kept as `(state, figures, at)`, where `at` is the instant at which it was written. If the
figures of a reader differ, `Strategy.adopt` converts the state before it is used. So the methods of
a strategy always see a state of their own figures.

A state is converted as of the instant at which it was written, and replenished since then at the
pace of the reader. So it converts to the same state whenever it is read, and a reader that has to
wait is admitted at the instant that its own figures say: a denial writes nothing, and the state
would go on at its old pace otherwise. There is one exception: a state that is fully replenished at
its own pace, which stores may forget, is one of a new key under all figures. A wait under figures
that take longer to replenish everything may end earlier by that.

Three laws hold for every conversion, with "larger" for figures of which none is smaller:

- Raising a limit lengthens no wait.
- Lowering a limit admits no more at once than the new limit.
- Alternating between two sets of figures admits no more than the larger of them.

Let D be the units that were used and not replenished at that instant, b the units that may come at
once, and r the rate. If D units become k * D, the laws leave one choice. Raising to (b', r')
lengthens no wait if k <= b'/b and k <= r'/r. Going to smaller figures and back must not forget
units, nor replenish them faster than r', so that the k of one direction is the inverse of the
other, and 1 <= k <= r'/r. Hence

    k = the middle one of 1, b'/b and r'/r

If both figures change by the same factor, as where the burst is the limit, the used share is kept
as it is. If only one of them changes, the used units are kept: a share of a larger burst at the
same rate would take longer to be replenished than any wait under the old figures.

What is owed, because it was booked ahead or because more was used than was there, takes as long as
before, and nothing is available under other figures before that. So what was booked starts at its
instant and is served before later requests, and a pause holds behind which something was booked.

The raw states in Redis are shared with other clients, and hold no figures. There only strategies
that are made by `Strategy.keeping_figures` keep them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from ._decision import Outcome
from ._validation import MAX_STORED_MS, shown, stored_whole

if TYPE_CHECKING:
    from ._strategy import Strategy

__all__ = ["NUDGE", "in_own_figures", "middle", "restored"]

R = TypeVar("R")
Run = Callable[[Any, int, int], Outcome[R]]

NUDGE = 1 - 2.0**-50
"""Takes more off a product of two quotients than their roundings add: what was exactly enough under
one set of figures stays enough under the other."""


def middle(one: float, other: float, third: float) -> float:
    """The middle one of three numbers."""
    return max(min(one, other), min(max(one, other), third))


def in_own_figures(strategy: Strategy, run: Run[R]) -> Run[R]:
    """The transition on states that are kept beside their figures, from one on states of the
    strategy's own figures."""
    own = strategy.figures
    if own is None:
        return run
    adopt = strategy.adopt

    def run_on_kept(kept: Any, now: int, cost: int) -> Outcome[R]:
        state = None
        if kept is not None:
            state, figures, at = kept
            if figures is not own and figures is not None and figures != own:
                state = adopt(state, now, figures, at)
        outcome = run(state, now, cost)
        if outcome.persist and outcome.state is not None:
            return Outcome((outcome.state, own, now), outcome.result, outcome.ttl_ms, True)
        return outcome

    return run_on_kept


def restored(strategy: Strategy, kept: Any) -> Any:
    """The state, from what a store outside the process has kept. One without figures is taken for
    one of the strategy's own. Raises ValueError if it is not a state of this strategy."""
    own = strategy.figures
    if own is None:
        return strategy.restore(kept)
    if isinstance(kept, (tuple, list)) and len(kept) == 3 and isinstance(kept[1], (tuple, list)):
        state, figures, at = kept
        figures = _stored_figures(figures, len(own))
        return strategy.restore(state), figures, stored_whole(at, MAX_STORED_MS)
    return strategy.restore(kept), own, 0


def _stored_figures(kept: Any, count: int) -> tuple[float, ...]:
    numbers = [each for each in kept if type(each) in (int, float) and isfinite(each) and each > 0]
    if not len(numbers) == len(kept) == count:
        raise ValueError(f"{shown(kept)}, where {count} figures should be")
    return tuple(map(float, numbers))
