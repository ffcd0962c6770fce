"""How long leased credits last.

| a strategy with | credits that are coupled last |
|---|---|
| a window, as a budget has one | to the end of the window that granted them |
| a sliding window | for the length of a window, as long as the store counts them |
| no window | until all of it is replenished |

Only the first row has windows that all nodes share, and so a limit that holds exactly per window.
Credits that are not coupled last until they are spent.
"""

from __future__ import annotations

from typing import NamedTuple

from ..core.grant import Grant
from ..core.strategy import Strategy
from ..core.validation import MAX_SPAN_MS, reject

__all__ = ["CARRIED", "REMOTE", "WINDOW", "Term", "term_of"]


class Term(NamedTuple):
    """`aligned`: credits belong to a window that all nodes share, which its end names. `span_ms`:
    they last that long instead of up to the grant's `reset_at`. `may_slide`: only the far tier
    knows whether the window is shared, and names the end of what it grants."""

    coupled: bool
    aligned: bool
    span_ms: int | None = None
    may_slide: bool = False

    def left_ms(self, grant: Grant) -> int:
        """How long the granted credits last from the instant of the grant."""
        if self.span_ms is not None:
            return self.span_ms
        return grant.decision.reset_at - grant.now


CARRIED = Term(coupled=False, aligned=False, span_ms=MAX_SPAN_MS)
WINDOW = Term(coupled=True, aligned=True)
REMOTE = WINDOW._replace(may_slide=True)


def term_of(strategy: Strategy, window_coupled: bool | None) -> Term:
    """By default, credits are coupled where the strategy has a window."""
    if window_coupled is not None and not isinstance(window_coupled, bool):
        reject(f"window_coupled must be True, False or None, not {window_coupled!r}")
    coupled = strategy.window_ms is not None if window_coupled is None else window_coupled
    if not coupled:
        return CARRIED
    if strategy.window_kind == "sliding":
        return Term(coupled=True, aligned=False, span_ms=strategy.window_ms)
    return WINDOW if strategy.window_ms is not None else Term(coupled=True, aligned=False)
