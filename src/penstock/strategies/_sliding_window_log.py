"""The sliding window, exact: remember when each admitted unit came.

A unit counts for `window_ms` after its stamp. A request is admitted if the units that still count
and its own cost fit the limit. There is no estimate and no edge; the price is memory for every
distinct instant within the window, and in Redis for every unit. One call may write all of them, as
a request of the whole limit or a pause does, which is why the limit is bounded.

Units admitted in one millisecond share one (stamp, count) pair. A unit is stamped with the newest
instant in the log when the clock reads earlier than that: after a backward jump, stamps stay
ascending and nothing leaves the window before its time.
"""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

from ..core._decision import Decision, Forecast, Outcome
from ..core._lua import LuaSource, beside, whole
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_PARTS, MAX_STORED_MS, reject, shown, stored_runs

if TYPE_CHECKING:
    from datetime import timedelta


__all__ = ["SlidingWindowLog", "sliding_window_log"]


MAX_LOG_LIMIT = MAX_PARTS

State = tuple[tuple[int, int], ...]

# As many units as no limit has: the oldest pair of a log with so many is a pause. Its stamp is one
# window before the end of the pause, so it holds until then, under whatever limit.
PAUSED = 2**52
_PAUSE = "pause"


def _decode(raw: Any) -> State | None:
    stamps = [whole(score) for score in raw if not _names_pause(score)]
    runs = {stamp: sum(1 for _ in units) for stamp, units in groupby(stamps)}
    for score in filter(_names_pause, raw):
        stamp = whole(score[len(_PAUSE) :])
        runs[stamp] = runs.get(stamp, 0) + PAUSED
    return tuple(sorted(runs.items())) or None


def _names_pause(score: Any) -> bool:
    return bool(score.startswith(_PAUSE.encode() if isinstance(score, bytes) else _PAUSE))


class SlidingWindowLog(Strategy):
    """State: ((stamp, count), ...), ascending."""

    name = "sliding_window_log"
    parameters: tuple[Parameter, ...] = (
        Parameter("limit", "count", "units in any window", high=MAX_LOG_LIMIT),
        Parameter("window_ms", "span", "the length of the window"),
    )
    window_kind: str | None = "sliding"
    kernel: str | None = "sliding_window_log"
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "slidingWindowLog",
            beside(__file__),
            argv=("now", "windowMs", "limit", "cost"),
            state="sorted set: one member per accepted unit, score its ms",
            raw="the scores, ascending, one per unit; that of a pause behind the word pause",
            decode=_decode,
            beyond_check=("refund", "charge", "pause"),
        ),
    )
    unit_bytes = 32

    def __init__(self, limit: int, window_ms: int | timedelta) -> None:
        if type(limit) is int and limit > MAX_LOG_LIMIT:
            reject(
                f"limit must be an integer from 1 to {MAX_LOG_LIMIT}, not {shown(limit)}: each "
                "unit of a log is kept by itself, and one call may write all of them; use "
                "sliding_window for more"
            )
        super().__init__(limit=limit, window_ms=window_ms)
        self.limit = limit
        self.window_ms: int = self.values["window_ms"]
        self.ttl_ms: int = self.window_ms

    @property
    def looks_back_ms(self) -> int:
        return self.window_ms

    def most_within(self, span_ms: int) -> int:
        return self.limit * -(-span_ms // self.window_ms)

    def is_looser_than(self, other: Strategy, *, alongside: bool, steady: bool) -> bool:
        if isinstance(other, SlidingWindowLog) and self.window_ms == other.window_ms:
            return other.limit <= self.limit
        return super().is_looser_than(other, alongside=alongside, steady=steady)

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        log, count = self._live(state, now)
        oldest = log[0][0] if log else now
        reset_at = oldest + self.window_ms
        if count + cost <= self.limit:
            decision = Decision(True, self.limit, self.limit - count - cost, reset_at, 0)
            log = _added(log, now, cost)
            return Outcome(log, decision, log[-1][0] - now + self.window_ms, True)
        retry = self._retry(log, count, now, cost)
        remaining = max(0, self.limit - count)
        return Outcome(state, Decision(False, self.limit, remaining, reset_at, retry), 0, False)

    def refund(self, state: State | None, now: int, cost: int, charged_at: int) -> Outcome[int]:
        log, _ = self._live(state, now)
        # Not while the clock is behind: what left the window in the meantime would be let in again.
        if not now - self.window_ms < charged_at <= now:
            return Outcome(state, 0, 0, False)
        # What a pause stands for is not there any more.
        if _is_paused(log) and charged_at <= log[0][0]:
            return Outcome(state, 0, 0, False)
        # Units bear the instant at which they were charged, or a later one if the log had that
        # already. Others that are older than the caller's own may be taken: that admits no sooner.
        units, left = 0, []
        for stamp, held in log:
            taken = min(cost - units, held) if stamp >= charged_at else 0
            units += taken
            if held > taken:
                left.append((stamp, held - taken))
        if not units:
            return Outcome(state, 0, 0, False)
        log = tuple(left)
        if not log:
            return Outcome(None, units, 0, True)
        return Outcome(log, units, log[-1][0] - now + self.window_ms, True)

    def charge(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        log, count = self._live(state, now)
        units = cost - self.excess(state, now, cost)
        remaining = max(0, self.limit - count - units)
        oldest = log[0][0] if log else now
        decision = Decision(True, self.limit, remaining, oldest + self.window_ms, 0)
        if not units:
            return Outcome(state, decision, 0, False)
        log = _added(log, now, units)
        return Outcome(log, decision, log[-1][0] - now + self.window_ms, True)

    def excess(self, state: State | None, now: int, cost: int) -> int:
        _, count = self._live(state, now)
        # More than the limit at one instant denies no more than that: it leaves all at once.
        return max(0, cost - max(0, min(self.limit, 2 * self.limit - count)))

    def pause(self, state: State | None, now: int, until_ms: int) -> Outcome[None]:
        log, _ = self._live(state, now)
        stamp = until_ms - self.window_ms
        if until_ms <= now or (_is_paused(log) and log[0][0] >= stamp):
            return Outcome(state, None, 0, False)
        # What is older leaves the window before the pause ends.
        log = ((stamp, PAUSED), *[pair for pair in log if pair[0] > stamp])
        return Outcome(log, None, log[-1][0] - now + self.window_ms, True)

    def longest_wait_ms(self, cost: int) -> int:
        return self.window_ms

    def restore(self, kept: Any) -> State:
        return stored_runs(kept, MAX_STORED_MS)

    def peek(self, state: State | None, now: int) -> Decision:
        decision = self.check(state, now, 1).result
        _, count = self._live(state, now)
        remaining = max(0, self.limit - count)
        return Decision(
            decision.allowed, self.limit, remaining, decision.reset_at, decision.retry_after_ms
        )

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        log, count = self._live(state, now)
        spendable = max(0, self.limit - count) // cost
        if not log:
            return Forecast(spendable, now, now)
        # A debt has to leave the window first.
        more_at = self._leaves_at(log, max(1, count - self.limit + 1))
        return Forecast(spendable, more_at, log[-1][0] + self.window_ms)

    def _live(self, state: State | None, now: int) -> tuple[State, int]:
        """The pairs that still count at `now`, and how many units they hold."""
        edge = now - self.window_ms
        log = state or ()
        if log and log[0][0] <= edge:
            log = tuple([pair for pair in log if pair[0] > edge])
        return log, sum([units for _, units in log])

    def _retry(self, log: State, count: int, now: int, cost: int) -> int:
        """Until enough of the oldest units have left; a cost above the limit waits for all."""
        if not log:
            return self.window_ms
        needed = min(max(count + cost - self.limit, 1), count)
        return max(1, self._leaves_at(log, needed) - now)

    def _leaves_at(self, log: State, units: int) -> int:
        """When that many of the oldest units have left the window."""
        freed = accumulate(held for _, held in log)
        stamp = next(pair[0] for pair, total in zip(log, freed, strict=True) if total >= units)
        return stamp + self.window_ms


def _is_paused(log: State) -> bool:
    return bool(log) and log[0][1] >= PAUSED


def _added(log: State, now: int, cost: int) -> State:
    """With `cost` more units, stamped with the newest instant that is known."""
    if log and log[-1][0] >= now:
        newest, units = log[-1]
        return (*log[:-1], (newest, units + cost))
    return (*log, (now, cost))


def sliding_window_log(limit: int, window_ms: int | timedelta) -> SlidingWindowLog:
    """`limit` in any `window_ms`, to the millisecond."""
    return SlidingWindowLog(limit, window_ms)
