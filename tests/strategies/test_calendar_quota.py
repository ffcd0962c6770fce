"""Quotas by the calendar, against a search that walks along the wall clock."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from calendar import monthrange
from datetime import date, datetime, timedelta, timezone
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock import ConfigInvalidError, ManualClock, calendar_quota, rate_limit
from penstock.config import parse_policies
from penstock.core._validation import MAX_INSTANT_MS
from penstock.strategies import CalendarQuota
from tests.support.effort import some

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

PERIODS = [
    ("hour", 1),
    ("day", 1),
    ("week", 1),
    ("week", 3),
    ("week", 7),
    ("month", 1),
    ("month", 15),
    ("month", 29),
    ("month", 30),
    ("month", 31),
    ("year", 1),
]

# What each has that others have not, and instants around which it happened.
ZONES = {
    "UTC": ["2024-02-29T12:00Z", "2023-03-01T00:00Z", "2100-02-28T23:00Z"],
    # An hour forward and back at night, and a leap year.
    "Europe/Berlin": ["2024-03-31T01:00Z", "2024-10-27T01:00Z", "1980-04-05T23:00Z"],
    "America/New_York": ["2024-03-10T07:00Z", "2024-11-03T06:00Z", "1974-01-06T07:00Z"],
    # The other hemisphere.
    "Australia/Sydney": ["2024-04-06T16:00Z", "2024-10-05T16:00Z"],
    # Half an hour.
    "Australia/Lord_Howe": ["2024-04-06T15:00Z", "2024-10-05T15:30Z"],
    # Midnights that do not exist.
    "America/Sao_Paulo": ["2018-11-04T03:00Z", "2018-02-18T02:00Z", "1999-10-03T03:00Z"],
    "Asia/Beirut": ["2024-03-30T22:00Z", "2024-10-26T21:00Z", "2023-03-29T21:00Z"],
    "America/Havana": ["2024-03-10T05:00Z", "2024-11-03T05:00Z"],
    # A minute after midnight, back into the day before.
    "America/St_Johns": ["2006-10-29T02:31Z", "2006-04-02T03:31Z", "1988-04-03T03:31Z"],
    # Days that were left out.
    "Pacific/Apia": ["2011-12-30T10:00Z", "2011-04-02T14:00Z", "2012-01-31T10:00Z"],
    "Pacific/Kwajalein": ["1993-08-21T12:00Z", "1993-08-31T12:00Z"],
    "Pacific/Kiritimati": ["1994-12-31T10:00Z", "1995-01-31T10:00Z"],
    # Two hours, and a change that was none of the summer's.
    "Antarctica/Troll": ["2024-03-31T01:00Z", "2024-10-27T01:00Z"],
    "Asia/Kathmandu": ["1985-12-31T18:30Z"],
    "Asia/Pyongyang": ["2015-08-14T15:00Z", "2018-05-04T15:00Z"],
    "Africa/Monrovia": ["1972-01-07T00:44Z"],
}


def ms(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment - EPOCH) // timedelta(milliseconds=1)


class Walk:
    """A wall clock, walked along minute by minute where something may happen: a period begins
    whenever the clock shows a later one than it ever did."""

    def __init__(self, zone: str, period: str, starts_on: int) -> None:
        self._zone = ZoneInfo(zone)
        self._period = period
        self._starts_on = starts_on
        self._reach = {"hour": 1, "day": 1, "week": 7, "month": 31, "year": 366}[period] * DAY

    def around(self, now: int) -> tuple[int, int]:
        """The period of an instant."""
        start = before = (now - self._reach - 3 * DAY) // MINUTE * MINUTE
        latest = self._shown(before)
        while True:
            after = before + HOUR
            if self._is_eventless(before, after, latest):
                before = after
                continue
            for at in range(before + MINUTE, after + MINUTE, MINUTE):
                at = self._exactly(at, latest)
                if (shown := self._shown(at)) > latest:
                    if at > now:
                        return max(0, start), at
                    start, latest = at, shown
            before = after

    def _is_eventless(self, before: int, after: int, latest: Any) -> bool:
        steady = self._offset(before) == self._offset(after)
        return steady and self._shown(after) <= latest

    def _exactly(self, at: int, latest: Any) -> int:
        """Within the minute that ends at `at`, where something later is shown first."""
        if self._shown(at) <= latest:
            return at
        return next(
            second
            for second in range(at - MINUTE + 1_000, at + 1_000, 1_000)
            if self._shown(second) > latest
        )

    def _offset(self, instant: int) -> Any:
        return self._local(instant).utcoffset()

    def _local(self, instant: int) -> datetime:
        return (EPOCH + timedelta(milliseconds=instant)).astimezone(self._zone)

    def _shown(self, instant: int) -> Any:
        """Something that names the period which the wall clock shows, in order."""
        local = self._local(instant)
        day = local.date()
        if self._period == "hour":
            return day, local.hour
        if self._period == "day":
            return day
        if self._period == "week":
            return (day.toordinal() - 1 - (self._starts_on - 1)) // 7
        if self._period == "year":
            return day.year
        return self._month(day)

    def _month(self, day: date) -> int:
        last = monthrange(day.year, day.month)[1]
        begun = day.day >= min(self._starts_on, last)
        return day.year * 12 + day.month - (0 if begun else 1)


def period_of(strategy: CalendarQuota, now: int) -> tuple[int, int]:
    outcome = strategy.check(None, now, 1)
    start, end, _ = outcome.state
    assert outcome.result.reset_at == end
    assert outcome.ttl_ms == end - now
    return start, end


def instants(zone: str, period: str, starts_on: int) -> list[int]:
    rng = Random(f"{zone} {period} {starts_on}")
    near = [ms(text) for text in ZONES[zone]]
    close = [at + rng.choice((-1, 0, 1, -MINUTE, MINUTE)) for at in near]
    wide = [at + rng.randint(-40 * HOUR, 40 * HOUR) for at in near]
    return [*near, *close, *wide, rng.randint(0, ms("2037-12-31T00:00Z"))]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("period", "starts_on"), PERIODS)
def test_periods_are_those_that_a_walk_along_the_wall_clock_finds(
    zone: str, period: str, starts_on: int
) -> None:
    """Around every oddity, and at their edges: a period starts, a millisecond before it did not."""
    strategy = calendar_quota(5, period, zone, starts_on)  # type: ignore[arg-type]
    walk = Walk(zone, period, starts_on)
    for now in some(instants(zone, period, starts_on), one_in=3, start=starts_on % 3):
        start, end = walk.around(now)
        assert period_of(strategy, now) == (start, end), now
        assert period_of(strategy, start) == (start, end)
        assert period_of(strategy, end - 1) == (start, end)
        assert period_of(strategy, end)[0] == end
        before, *present, after = strategy.periods_at(now)
        assert present == [start, end]
        assert before == (period_of(strategy, start - 1)[0] if start else 0)
        assert after == period_of(strategy, end)[1]


@pytest.mark.parametrize(
    ("quota", "start", "end"),
    [
        # 23 and 25 hours.
        (("day", "Europe/Berlin"), "2024-03-30T23:00Z", "2024-03-31T22:00Z"),
        (("day", "Europe/Berlin"), "2024-10-26T22:00Z", "2024-10-27T23:00Z"),
        # An hour that the clock shows twice is one.
        (("hour", "Europe/Berlin"), "2024-10-27T00:00Z", "2024-10-27T02:00Z"),
        (("hour", "Australia/Lord_Howe"), "2024-04-06T14:00Z", "2024-04-06T15:30Z"),
        # The first day of summer begins at one.
        (("day", "America/Sao_Paulo"), "2018-11-04T03:00Z", "2018-11-05T02:00Z"),
        # From the 29th straight to the 31st.
        (("day", "Pacific/Apia"), "2011-12-29T10:00Z", "2011-12-30T10:00Z"),
        (("day", "Pacific/Apia"), "2011-12-30T10:00Z", "2011-12-31T10:00Z"),
        (("month", "Pacific/Apia", 30), "2011-11-30T10:00Z", "2011-12-30T10:00Z"),
        (("day", "Pacific/Kwajalein"), "1993-08-20T12:00Z", "1993-08-21T12:00Z"),
        # February, with and without a 29th.
        (("month", "UTC", 31), "2024-01-31T00:00Z", "2024-02-29T00:00Z"),
        (("month", "UTC", 31), "2024-02-29T00:00Z", "2024-03-31T00:00Z"),
        (("month", "UTC", 29), "2023-02-28T00:00Z", "2023-03-29T00:00Z"),
        (("month", "UTC", 30), "2100-02-28T00:00Z", "2100-03-30T00:00Z"),
        # Monday, and Sunday.
        (("week", "UTC"), "2024-02-26T00:00Z", "2024-03-04T00:00Z"),
        (("week", "UTC", 7), "2024-02-25T00:00Z", "2024-03-03T00:00Z"),
        (("year", "America/New_York"), "2024-01-01T05:00Z", "2025-01-01T05:00Z"),
    ],
)
def test_periods_are_those_that_people_would_name(
    quota: tuple[Any, ...], start: str, end: str
) -> None:
    """Written down by hand."""
    strategy = calendar_quota(5, *quota)
    for now in (ms(start), ms(start) + 1, ms(end) - 1):
        assert period_of(strategy, now) == (ms(start), ms(end))


@pytest.mark.parametrize(("period", "starts_on"), PERIODS)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_the_first_and_the_last_instant_have_a_period(
    zone: str, period: str, starts_on: int
) -> None:
    """No start lies before the epoch, where no state can hold it."""
    strategy = calendar_quota(5, period, zone, starts_on)  # type: ignore[arg-type]
    for now in (0, 1, MAX_INSTANT_MS):
        start, end = period_of(strategy, now)
        assert 0 <= start <= now < end
        assert strategy.restore(list(strategy.check(None, now, 1).state)) == (start, end, 1)
        before, *_, after = strategy.periods_at(now)
        assert 0 <= before <= start
        assert after > end


def test_a_quota_counts_in_its_period_and_starts_over_with_the_next() -> None:
    """Through a limiter, over the end of a month in Berlin."""
    clock = ManualClock(ms("2024-03-31T21:59Z"))
    limiter = rate_limit(calendar_quota(2, "month", "Europe/Berlin"), clock=clock)
    assert limiter.check("k").remaining == 1
    assert limiter.check("k").allowed
    denied = limiter.check("k")
    assert (denied.allowed, denied.retry_after_ms) == (False, MINUTE)
    assert denied.reset_at == ms("2024-03-31T22:00Z")
    assert limiter.peek("k").retry_after_ms == MINUTE
    assert limiter.forecast("k").full_at == denied.reset_at
    clock.advance(MINUTE)
    assert limiter.check("k", 2).allowed
    assert limiter.check("other", 2).reset_at == ms("2024-04-30T22:00Z")


def test_a_jump_back_into_the_month_before_opens_no_fresh_quota() -> None:
    """The stored period stands until time has caught up, with its own end."""
    strategy = calendar_quota(3, "month")
    april, march = ms("2024-04-01T00:00Z"), ms("2024-03-10T00:00Z")
    state = strategy.check(None, april, 2).state
    assert strategy.check(state, march, 1).result.allowed
    denied = strategy.check(state, march, 2).result
    assert (denied.remaining, denied.reset_at) == (1, ms("2024-05-01T00:00Z"))


def test_a_pause_beyond_the_period_ends_when_it_should() -> None:
    """Not only with the period that it ends in."""
    strategy, now = calendar_quota(3, "hour"), ms("2024-04-01T10:30Z")
    until = now + 5 * HOUR
    state = strategy.pause(None, now, until).state
    for at in (now, now + 2 * HOUR, until - 1):
        denied = strategy.check(state, at, 1).result
        assert (denied.allowed, denied.retry_after_ms) == (False, until - at)
    assert strategy.check(state, until, 3).result.allowed


def test_a_longer_period_does_not_hold_a_shorter_one() -> None:
    """A policy was changed from a month to a day: tomorrow is a new day."""
    month, day = calendar_quota(5, "month"), calendar_quota(5, "day")
    now = ms("2024-04-10T10:00Z")
    state = month.check(None, now, 5).state
    assert day.check(state, now, 5).result.allowed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((0, "day"), "limit must be an integer from 1"),
        ((5, "fortnight"), "period must be 'hour' or 'day' or 'week' or 'month' or 'year', not"),
        ((5, 60_000), "period must be 'hour'"),
        ((5, "day", "Europe/Berln"), "did you mean 'Europe/Berlin'?"),
        ((5, "day", "Europe"), "timezone must be the IANA name of a time zone"),
        ((5, "day", ""), "timezone must be the IANA name of a time zone"),
        ((5, "day", "../Europe/Berlin"), "timezone must be the IANA name of a time zone"),
        ((5, "day", "/etc/passwd"), "timezone must be the IANA name of a time zone"),
        ((5, "day", 2), "timezone must be the IANA name of a time zone, such as 'UTC', not 2"),
        ((5, "day", "UTC", 2), "starts_on must be left out for a quota per day, not 2"),
        ((5, "year", "UTC", 2), "starts_on must be left out for a quota per year, not 2"),
        ((5, "week", "UTC", 8), "starts_on must be from 1 to 7 for a quota per week, not 8"),
        ((5, "month", "UTC", 32), "starts_on must be an integer from 1 to 31"),
        ((5, "month", "UTC", 0), "starts_on must be an integer from 1 to 31"),
    ],
)
def test_what_is_wrong_is_told(arguments: tuple[Any, ...], told: str) -> None:
    """With what would be right."""
    with pytest.raises(ConfigInvalidError) as caught:
        calendar_quota(*arguments)
    assert told in str(caught.value)


NO_DATA = """
import sys
sys.modules["tzdata"] = None
import penstock
assert penstock.calendar_quota(5, "day").check(None, 5, 1).result.allowed
try:
    penstock.calendar_quota(5, "day", "Europe/Berlin")
except penstock.ConfigInvalidError as error:
    print(error)
"""


def test_a_machine_without_zones_is_told_what_to_install() -> None:
    """UTC needs none."""
    done = subprocess.run(
        [sys.executable, "-c", NO_DATA],
        env={**os.environ, "PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "no time zone data; install the package tzdata: pip install tzdata" in done.stdout


def test_a_policy_file_may_name_it() -> None:
    """In camelCase; `period` is no duration here."""
    text = """
version: 1
limiters:
  monthly:
    strategy: calendarQuota
    limit: 10000
    period: month
    timezone: Europe/Berlin
    startsOn: 15
  daily: {strategy: calendar_quota, limit: 5, period: day}
"""
    policies = parse_policies(text).policies
    monthly = policies["monthly"].strategy
    assert repr(monthly) == repr(calendar_quota(10_000, "month", "Europe/Berlin", 15))
    assert repr(policies["daily"].strategy) == repr(calendar_quota(5, "day"))
    assert monthly is not None
    assert monthly.in_words() == "10,000 a month in Europe/Berlin, from day 15"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("limit: 5, period: 1m", "limiters.api.period: must be one of hour, day, week, month"),
        ("limit: 5", "limiters.api.period: is missing; write for example period: hour"),
        ("limit: 5, period: day, timezone: 7", "limiters.api.timezone: must be text, not 7"),
        ("limit: 5, period: day, timezone: Mars/Base", "not 'Mars/Base'"),
        ("limit: 5, period: day, startsOn: 3", "starts_on must be left out for a quota per day"),
        ("limit: 5, period: day, windowMs: 3", "limiters.api.windowMs: is not known here"),
    ],
)
def test_a_policy_that_is_wrong_is_told_where(fields: str, told: str) -> None:
    """By its path in the file."""
    with pytest.raises(ConfigInvalidError) as caught:
        parse_policies(f"version: 1\nlimiters: {{api: {{strategy: calendarQuota, {fields}}}}}")
    assert told in str(caught.value)


def test_it_can_be_pickled() -> None:
    """Zones go by their names."""
    strategy = calendar_quota(5, "month", "Europe/Berlin", 31)
    copied = pickle.loads(pickle.dumps(strategy))
    now = ms("2024-02-10T10:00Z")
    assert copied.check(None, now, 2).result == strategy.check(None, now, 2).result
    assert repr(copied) == repr(strategy)
