"""Token budgets: limits on usage that is known only afterwards.

How many tokens a language model's answer takes is known once it has been generated, when it is too
late to deny it. So a debit is admitted as long as less than the budget has been used in the window,
and is then counted in full. At most one debit per window, the crossing one, exceeds the budget, by
less than its own size; after it, debits are denied until the next window::

    budget = rate_limit(token_budget(100_000, 60_000), store=store)
    if budget.peek("alice"):
        answer = ask_the_model()
        budget.check("alice", answer.tokens)

When a request begins there is only an estimate. Admission asks whether the estimate fits into what
is left, and spends nothing (`look`); the true usage is debited when it is known.

Windows are aligned to the epoch, the same for every key. As with a fixed window, a stored window
that is later than the computed one means that the clock went back; the stored one is kept.

`budget.lua` is the same transition for Redis, so that a fleet debits in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core._decision import Decision, Forecast, Outcome
from .core._lua import LuaSource, beside, hash_fields, whole
from .core._strategy import Parameter, Strategy
from .core._validation import MAX_SAFE, MAX_STORED_MS, stored_pair, stored_whole

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["TokenBudget", "token_budget"]


State = tuple[int, int]


def _decode(raw: Any) -> State | None:
    fields = hash_fields(raw)
    return None if fields is None else (whole(fields[0]), whole(fields[1]))


class TokenBudget(Strategy):
    """Counts tokens after the fact. Made by `token_budget`.

    The state is (start, served).
    """

    name = "token_budget"
    parameters: tuple[Parameter, ...] = (
        Parameter("budget", "count", "tokens per window", example=100_000),
        Parameter("window_ms", "span", "the length of a window"),
    )
    window_kind: str | None = "fixed"
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "tokenBudget",
            beside(__file__),
            argv=("now", "budget", "windowMs", "cost"),
            state="hash: s start of the window, c tokens served in it, each %.0f",
            raw="s and c, or nil twice",
            decode=_decode,
            beyond_check=("look",),
        ),
    )

    def __init__(self, budget: int, window_ms: int | timedelta) -> None:
        super().__init__(budget=budget, window_ms=window_ms)
        self.limit = budget
        self.window_ms: int = self.values["window_ms"]
        self.ttl_ms: int = self.window_ms

    @property
    def budget(self) -> int:
        """Tokens per window."""
        return self.limit

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        start, served = self._window(state, now)
        reset_at = start + self.window_ms
        if served >= self.limit:
            decision = Decision(False, self.limit, 0, reset_at, reset_at - now)
            return Outcome(state, decision, 0, False)
        # Beyond every budget it does not matter by how much, but a double must still hold it.
        served = min(served + cost, MAX_SAFE)
        decision = Decision(True, self.limit, max(0, self.limit - served), reset_at, 0)
        return Outcome((start, served), decision, reset_at - now, True)

    def longest_wait_ms(self, cost: int) -> int:
        return self.window_ms

    def restore(self, kept: Any) -> State:
        start, count = stored_pair(kept)
        return stored_whole(start, MAX_STORED_MS), stored_whole(count, MAX_SAFE)

    def peek(self, state: State | None, now: int) -> Decision:
        return self.look(state, now, 1)

    def look(self, state: State | None, now: int, cost: int) -> Decision:
        """Whether an estimate of `cost` fits into what is left. A debit need not fit."""
        start, served = self._window(state, now)
        reset_at = start + self.window_ms
        remaining = max(0, self.limit - served)
        allowed = cost <= remaining
        return Decision(allowed, self.limit, remaining, reset_at, 0 if allowed else reset_at - now)

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        start, served = self._window(state, now)
        full_at = start + self.window_ms if served else now
        # Rounded up: the debit that crosses is admitted too.
        return Forecast(-(-max(0, self.limit - served) // cost), full_at, full_at)

    def _window(self, state: State | None, now: int) -> State:
        """The window that `now` falls into, and what was served in it."""
        start = now // self.window_ms * self.window_ms
        if state is None or state[0] < start:
            return start, 0
        return state[0], state[1]


def token_budget(budget: int, window_ms: int | timedelta) -> TokenBudget:
    """`budget` tokens per window, debited after the fact."""
    return TokenBudget(budget, window_ms)
