"""Token budgets: for what is known to have been used only afterwards.

A language model's answer costs as many tokens as it turns out to have. By then it has been served,
so a limit that refuses what does not fit has nothing left to refuse. A budget turns the question
round: a debit is admitted while less than the budget has been served, and is then counted in full.
So at most one debit of a window, the one that crosses, goes over the budget, and by less than its
own size; after it the budget is spent until the window rolls::

    budget = rate_limit(token_budget(100_000, 60_000), store=store)
    if budget.peek("alice"):
        answer = ask_the_model()
        budget.check("alice", answer.tokens)

Windows are slices of the calendar, the same for every key. As with a fixed window, a stored window
later than the computed one means that the clock went back, and stands.

A fleet on one Redis debits in one step, by a script that makes the same transition.
"""

from __future__ import annotations

from typing import Any

from .core.decision import Decision, Forecast, Outcome
from .core.strategy import LuaRider, Strategy
from .core.validation import MAX_SAFE, MAX_SPAN_MS, require_int
from .strategies.lua import LuaProgram

__all__ = ["TokenBudget", "token_budget"]

State = tuple[int, int]


class TokenBudget(Strategy):
    """Counts tokens after the fact. Made by `token_budget`.

    The state is (start, served).
    """

    name = "token_budget"

    def __init__(self, budget: int, window_ms: int) -> None:
        self.limit: int = require_int("budget", budget)
        self.window_ms: int = require_int("window_ms", window_ms, high=MAX_SPAN_MS)
        self.ttl_ms: int = self.window_ms
        self.lua: LuaRider = TOKEN_BUDGET.rider(budget=self.limit, windowMs=self.window_ms)

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

    def peek(self, state: State | None, now: int) -> Decision:
        start, served = self._window(state, now)
        reset_at = start + self.window_ms
        allowed = served < self.limit
        remaining = max(0, self.limit - served)
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

    def __repr__(self) -> str:
        return f"token_budget(budget={self.limit}, window_ms={self.window_ms})"


def token_budget(budget: int, window_ms: int) -> TokenBudget:
    """`budget` tokens per window of `window_ms`, aligned to the epoch, debited after the fact.

    A `check` is the debit: it is admitted while less than the budget was served, and then counted
    in full.
    """
    return TokenBudget(budget, window_ms)


def _decode(raw: Any) -> State | None:
    start, served = raw
    return None if start is None or served is None else (int(start), int(served))


TOKEN_BUDGET = LuaProgram(
    "tokenBudget",
    strategy="tokenBudget",
    argv=("now", "budget", "windowMs", "cost"),
    state="hash: s start of the window, c tokens served in it, each %.0f",
    check=f"""
local stored = redis.call('HMGET', KEYS[1], 's', 'c')
local storedStart, storedServed = tonumber(stored[1] or nil), tonumber(stored[2] or nil)
local start, served = math.floor(now / windowMs) * windowMs, 0
if storedStart and storedStart >= start then start, served = storedStart, storedServed end
local resetAt = start + windowMs

if served >= budget then
  return {{0, budget, 0, resetAt, resetAt - now}}
end

served = math.min(served + cost, {MAX_SAFE})
redis.call('HSET', KEYS[1], 's', string.format('%.0f', start), 'c', string.format('%.0f', served))
redis.call('PEXPIRE', KEYS[1], keepMs(resetAt - now))
return {{1, budget, math.max(0, budget - served), resetAt, 0}}
""",
    read="""
return redis.call('HMGET', KEYS[1], 's', 'c')
""",
    raw="s and c, or nil twice",
    decode=_decode,
)
