"""The calendar quota: count, and start over when the hour, day, week, month or year does.

A fixed window whose boundaries are those of a wall clock. A period begins at the first instant at
which the clock on the wall of the zone shows its nominal start, or something later. That one rule
covers what calendars do: a midnight that is skipped is the first instant after it, a day has 23 to
25 hours, a day that a zone left out has no instants and so no quota, and an hour that the clock
shows twice is one hour that lasts two. Days of the month that a month lacks are its last day.

A state holds the end of its period beside its start. Where the clock has gone back the stored
period stands, as in the fixed window, and its end need not be looked up again: the script in Redis
could not, since it has no calendar. It is given the period that its caller sees and the one on
either side, and picks by the clock that decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..core._decision import Decision, Forecast, Outcome
from ..core._lua import PERIODS, LuaSource, beside, whole
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_SAFE, MAX_STORED_MS, reject, stored_whole, zone_of
from ._fixed_window import PAUSED

if TYPE_CHECKING:
    from datetime import datetime, tzinfo


__all__ = ["CalendarQuota", "Period", "calendar_quota"]


Period = Literal["hour", "day", "week", "month", "year"]
"""What a quota is for."""

State = tuple[int, int, int]

_HOUR, _DAY = 3_600_000, 86_400_000
_USUAL_MS = {
    "hour": _HOUR,
    "day": _DAY,
    "week": 7 * _DAY,
    "month": 31 * _DAY,
    "year": 366 * _DAY,
}
# No zone has put its clocks back by more than this since 1970.
_LONGEST_REPEAT_MS = 3 * _HOUR
_LAST_DAY = {"week": 7, "month": 31}
# How many periods of the first kind one of the second has at most; days start wherever others do.
_MOST_WITHIN = {("day", "week"): 7, ("day", "month"): 31, ("day", "year"): 366}


def _decode(raw: Any) -> State | None:
    if all(field is None for field in raw):
        return None
    start, end, count = map(whole, raw)
    return start, end, count


class CalendarQuota(Strategy):
    """State: (start, end, count)."""

    name = "calendar_quota"
    parameters: tuple[Parameter, ...] = (
        Parameter("limit", "count", "units per period"),
        Parameter(
            "period", "choice", "what the quota is for", choices=tuple(_USUAL_MS), example="month"
        ),
        Parameter("timezone", "zone", "whose wall clock counts, by its IANA name", default="UTC"),
        Parameter(
            "starts_on",
            "count",
            "the day of the month, or of the week from 1 for Monday, on which periods start; "
            "a month that lacks the day starts on its last",
            default=1,
            high=31,
            shapes_state=True,
        ),
    )
    window_kind: str | None = "fixed"
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "calendarQuota",
            beside(__file__),
            argv=("now", "limit", *PERIODS, "cost"),
            state="hash: s start of the period, e its end, c count in it, each %.0f",
            raw="s, e and c, or nil three times",
            decode=_decode,
            beyond_check=("refund", "charge", "pause"),
        ),
    )

    def __init__(self, limit: int, period: str, timezone: str = "UTC", starts_on: int = 1) -> None:
        super().__init__(limit=limit, period=period, timezone=timezone, starts_on=starts_on)
        last = _LAST_DAY.get(period, 1)
        if starts_on > last:
            days = f"from 1 to {last}" if last > 1 else "left out"
            reject(f"starts_on must be {days} for a quota per {period}, not {starts_on}")
        self.limit = limit
        self.period = period
        self.timezone = timezone
        self.starts_on = starts_on
        self.window_ms: int = _USUAL_MS[period]
        self.ttl_ms: int = self.window_ms + _LONGEST_REPEAT_MS
        self._calendar = Calendar(period, zone_of("timezone", timezone), starts_on)

    @property
    def looks_back_ms(self) -> int:
        return self.ttl_ms

    def is_looser_than(self, other: Strategy, *, alongside: bool, steady: bool) -> bool:
        """Periods of one calendar count together; short ones fill long ones from edge to edge."""
        if isinstance(other, CalendarQuota) and self.timezone == other.timezone:
            if self.state_form == other.state_form:
                return other.limit <= self.limit
            most = _MOST_WITHIN.get((other.period, self.period))
            if steady and most is not None and other.starts_on == 1:
                return other.limit * most <= self.limit
        return super().is_looser_than(other, alongside=alongside, steady=steady)

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        start, end, count = self._period(state, now)
        if count + cost <= self.limit:
            decision = Decision(True, self.limit, self.limit - count - cost, end, 0)
            return Outcome((start, end, count + cost), decision, end - now, True)
        remaining = max(0, self.limit - count)
        return Outcome(state, Decision(False, self.limit, remaining, end, end - now), 0, False)

    def refund(self, state: State | None, now: int, cost: int, charged_at: int) -> Outcome[int]:
        start, end, count = self._period(state, now)
        units = min(cost, count) if start <= charged_at < end else 0
        if not units:
            return Outcome(state, 0, 0, False)
        return Outcome((start, end, count - units), units, end - now, True)

    def counted_at(self, decision: Decision, charged_at: int) -> int:
        # The last instant of its period: the decision does not say where that starts.
        return max(charged_at, decision.reset_at - 1)

    def charge(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        start, end, count = self._period(state, now)
        count += cost - self.excess(state, now, cost)
        decision = Decision(True, self.limit, max(0, self.limit - count), end, 0)
        return Outcome((start, end, count), decision, end - now, True)

    def excess(self, state: State | None, now: int, cost: int) -> int:
        _, _, count = self._period(state, now)
        return max(0, cost - max(0, min(2 * self.limit, MAX_SAFE) - count))

    def pause(self, state: State | None, now: int, until_ms: int) -> Outcome[None]:
        start, end, count = self._period(state, now)
        if until_ms <= now or (end >= until_ms and count >= PAUSED):
            return Outcome(state, None, 0, False)
        if end < until_ms:
            # A spent period that is still to come stands until it is over.
            start, end = until_ms - 1, until_ms
        return Outcome((start, end, MAX_SAFE), None, end - now, True)

    def longest_wait_ms(self, cost: int) -> int:
        return self.ttl_ms

    def restore(self, kept: Any) -> State:
        if not isinstance(kept, (tuple, list)) or len(kept) != 3:
            raise ValueError(f"{kept!r:.80}, where a start, an end and a count should be")
        start, end, count = kept
        start, end = stored_whole(start, MAX_STORED_MS), stored_whole(end, MAX_STORED_MS)
        if start >= end:
            raise ValueError(f"a period from {start} to {end}")
        return start, end, stored_whole(count, MAX_SAFE)

    def peek(self, state: State | None, now: int) -> Decision:
        _, end, count = self._period(state, now)
        remaining = max(0, self.limit - count)
        return Decision(remaining > 0, self.limit, remaining, end, 0 if remaining else end - now)

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        _, end, count = self._period(state, now)
        full_at = end if count else now
        return Forecast(max(0, self.limit - count) // cost, full_at, full_at)

    @property
    def rate(self) -> tuple[int, int | None]:
        # Periods differ in length, so none is told.
        return self.limit, None

    def in_words(self) -> str:
        article = "an" if self.period == "hour" else "a"
        start = f", from day {self.starts_on}" if self.starts_on > 1 else ""
        return f"{self.limit:,} {article} {self.period} in {self.timezone}{start}"

    def periods_at(self, now: int) -> tuple[int, int, int, int]:
        """Where the period before starts, the present one, the next, and where that one ends."""
        start, end = self._calendar.at(now)
        before = self._calendar.at(start - 1)[0] if start else 0
        return before, start, end, self._calendar.at(end)[1]

    def _period(self, state: State | None, now: int) -> State:
        """The period that `now` falls into, and what was spent in it."""
        start, end = self._calendar.at(now)
        if state is not None and state[0] >= start and now < state[1]:
            return state
        return start, end, 0


class Calendar:
    """The periods of a wall clock."""

    def __init__(self, period: str, zone: tzinfo, starts_on: int) -> None:
        self._period = period
        self._zone = zone
        self._starts_on = starts_on
        self._last = (0, 0)

    def at(self, now: int) -> tuple[int, int]:
        """Start and end of the period that an instant falls into; instants before 1970 are cut
        off."""
        start, end = last = self._last
        if start <= now < end:
            return last
        begin = self._begin(self._shown_at(now))
        at, following = self._first_instant(begin), self._next(begin)
        # Where the clock was put back, the next period may have begun already; where a day was left
        # out, periods are empty.
        while (end := self._first_instant(following)) <= now:
            at, following = end, self._next(following)
        self._last = found = max(0, at), end
        return found

    def _begin(self, shown: datetime) -> datetime:
        """The nominal start of the period of what a wall clock shows."""
        if self._period == "hour":
            return shown.replace(minute=0, second=0, microsecond=0)
        midnight = shown.replace(hour=0, minute=0, second=0, microsecond=0)
        if self._period == "day":
            return midnight
        if self._period == "week":
            return _hours_after(midnight, -24 * ((midnight.isoweekday() - self._starts_on) % 7))
        if self._period == "year":
            return midnight.replace(month=1, day=1)
        this = self._in_month(midnight.year, midnight.month)
        return this if this <= midnight else self._in_month(*_month_before(this))

    def _next(self, begin: datetime) -> datetime:
        if self._period == "hour":
            return _hours_after(begin, 1)
        if self._period in ("day", "week"):
            return _hours_after(begin, 24 if self._period == "day" else 7 * 24)
        if self._period == "year":
            return begin.replace(year=begin.year + 1)
        return self._in_month(begin.year + begin.month // 12, begin.month % 12 + 1)

    def _in_month(self, year: int, month: int) -> datetime:
        from calendar import monthrange
        from datetime import datetime

        return datetime(year, month, min(self._starts_on, monthrange(year, month)[1]))

    def _first_instant(self, nominal: datetime) -> int:
        """When the wall clock first shows `nominal` or later."""
        late = _ms_of(nominal.replace(tzinfo=self._zone))
        if self._shown_at(late) == nominal:
            return late
        # The clock skips it: by the offset before the leap it is late, by the one after it early.
        early = _ms_of(nominal.replace(tzinfo=self._zone, fold=1))
        while late - early > 1:
            middle = (early + late) // 2
            if self._shown_at(middle) < nominal:
                early = middle
            else:
                late = middle
        return late

    def _shown_at(self, instant: int) -> datetime:
        """What the wall clock shows, without its zone."""
        from datetime import datetime, timedelta, timezone

        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=instant)
        return moment.astimezone(self._zone).replace(tzinfo=None, fold=0)


def _ms_of(moment: datetime) -> int:
    from datetime import datetime, timedelta, timezone

    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return since // timedelta(milliseconds=1)


def _hours_after(shown: datetime, hours: int) -> datetime:
    from datetime import timedelta

    return shown + timedelta(hours=hours)


def _month_before(shown: datetime) -> tuple[int, int]:
    return (shown.year, shown.month - 1) if shown.month > 1 else (shown.year - 1, 12)


def calendar_quota(
    limit: int,
    period: Literal["hour", "day", "week", "month", "year"],
    timezone: str = "UTC",
    starts_on: int = 1,
) -> CalendarQuota:
    """`limit` per hour, day, week, month or year of the wall clock in an IANA zone. `starts_on` is
    the day of the month, or of the week from 1 for Monday, on which periods start."""
    return CalendarQuota(limit, period, timezone, starts_on)
