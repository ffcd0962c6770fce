"""No limit at all: every request is allowed and nothing is kept.

For tests, and as a kill switch that leaves the calling code as it is.
"""

from __future__ import annotations

from ..core._decision import Booking, Decision, Forecast, Outcome
from ..core._errors import UnsupportedError
from ..core._strategy import Strategy
from ..core._validation import MAX_SAFE

__all__ = ["Unlimited", "unlimited"]


class Unlimited(Strategy):
    """Allows everything and keeps no state. Made by `unlimited`."""

    name = "unlimited"
    limit = MAX_SAFE
    books_ahead = True

    def check(self, _state: None, now: int, _cost: int) -> Outcome[Decision]:
        return Outcome(None, self.peek(None, now), 0, False)

    def peek(self, _state: None, now: int) -> Decision:
        return Decision(True, MAX_SAFE, MAX_SAFE, now, 0)

    def look(self, _state: None, now: int, _cost: int) -> Decision:
        return self.peek(None, now)

    def refund(self, _state: None, _now: int, cost: int, _charged_at: int) -> Outcome[int]:
        return Outcome(None, cost, 0, False)

    def charge(self, _state: None, now: int, cost: int) -> Outcome[Decision]:
        return self.check(None, now, cost)

    def book(self, _state: None, now: int, _cost: int, _max_wait_ms: int) -> Outcome[Booking]:
        return Outcome(None, Booking(self.peek(None, now), 0), 0, False)

    def pause(self, _state: None, _now: int, _until_ms: int) -> Outcome[None]:
        raise UnsupportedError("what has no limit cannot be paused: nothing is kept of its keys")

    def forecast(self, _state: None, now: int, cost: int) -> Forecast:
        return Forecast(MAX_SAFE // cost, now, now)

    def __repr__(self) -> str:
        return "unlimited()"


def unlimited() -> Unlimited:
    """Allows every request and reports the largest limit there is: for tests, and to switch a
    limit off without changing the code that asks."""
    return Unlimited()
