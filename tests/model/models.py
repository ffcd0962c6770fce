"""The state of one key of one limit, by the contract and nothing else.

Each model keeps what was admitted and decides by the words of the contract: sections 3 and 4 for
decisions, 11 for charges and refunds, 12 for calendars, 16 for slots. Nothing is optimized. The
floating-point operations of section 4 are normative, so the models repeat those literally; all
else is whole numbers. A forecast is found by looking at one instant after the other.

A model is `sure` while the contract says exactly what the state is. Some operations have laws
instead of an exact result: a pause, a refund behind a booking, other figures for a state. They make
the model unsure for as long as their effect may last; then only the laws (`laws.py`) are compared.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from math import ceil, floor
from typing import Any
from zoneinfo import ZoneInfo

from penstock import Decision, Forecast

from . import figures as f

MAX = 2**53 - 1
NEVER = -(2**60)


class KeyModel:
    """One key. Subclasses implement `decide`, `take` and the fields of a look."""

    def __init__(self, figures: Any) -> None:
        self.figures = figures
        self.limit: int = figures.limit
        self.unsure_until = NEVER
        """The instant from which the state is known exactly again, because all has faded."""
        self.loose_ms = 0
        """By how much instants may differ: refunds of units that are replenished in part are fixed
        up to roundings."""

    def clear(self) -> None:
        """Forget everything: a cold key."""
        raise NotImplementedError

    def decide(self, now: int, cost: int) -> Decision:
        """The decision on a request, which is not taken yet. With cost 0: what is left."""
        raise NotImplementedError

    def take(self, now: int, cost: int) -> None:
        """Count an admitted request."""
        raise NotImplementedError

    def left(self, now: int) -> int:
        """What is left at an instant."""
        return self.decide(now, 0).remaining

    def peek(self, now: int) -> Decision:
        """The decision on cost 1, with `remaining` as it stands."""
        one = self.decide(now, 1)
        return Decision(one.allowed, one.limit, self.left(now), one.reset_at, one.retry_after_ms)

    def refund(self, now: int, units: int, charged: Decision, charged_at: int) -> None:
        raise NotImplementedError

    def charge(self, now: int, units: int) -> None:
        """Count units that have been used, up to a debt of one whole limit."""
        raise NotImplementedError

    # Whether the state is known.

    def sure(self, now: int) -> bool:
        if self.unsure_until == NEVER:
            return True
        if now < self.unsure_until:
            return False
        # All that was uncertain has faded.
        self.clear()
        self.unsure_until, self.loose_ms = NEVER, 0
        return True

    def doubt(self, until: int) -> None:
        """The state is not known until this instant."""
        self.unsure_until = max(self.unsure_until, until)

    def forecast(self, now: int, cost: int) -> Forecast:
        trial, fits = copy.deepcopy(self), 0
        while trial.decide(now, cost).allowed:
            trial.take(now, cost)
            fits += 1
        left = self.left(now)
        if left >= self.limit:
            return Forecast(fits, now, now)
        more_at = self._first(now, lambda at: self.left(at) > left)
        return Forecast(fits, more_at, self._first(now, lambda at: self.left(at) >= self.limit))

    def _first(self, now: int, holds: Callable[[int], bool]) -> int:
        """The first instant after `now` at which this holds, if it holds from then on."""
        step = 1
        while not holds(now + step):
            step *= 2
        low, high = now, now + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high


class Gcra(KeyModel):
    def __init__(self, figures: f.Gcra) -> None:
        super().__init__(figures)
        self.T = figures.period_ms * 2048 // figures.rate / 2048
        self.tau = self.T * figures.limit
        self.clear()

    def clear(self) -> None:
        self.tat: float | None = None

    def _tat(self, now: int) -> float:
        return max(float(now) if self.tat is None else self.tat, float(now))

    def decide(self, now: int, cost: int) -> Decision:
        tat = self._tat(now)
        new = tat + self.T * cost
        allow_at = new - self.tau
        if cost and now < allow_at:
            left = max(0, floor((self.tau - (tat - now)) / self.T))
            return Decision(False, self.limit, left, ceil(tat), ceil(allow_at - now))
        left = max(0, floor((self.tau - (new - now)) / self.T))
        return Decision(True, self.limit, left, ceil(new), 0)

    def take(self, now: int, cost: int) -> None:
        self.tat = self._tat(now) + self.T * cost

    def book(self, now: int, cost: int, wait_ms: int) -> tuple[Decision, int]:
        tat = self._tat(now)
        delay = max(0, ceil(tat + self.T * cost - self.tau - now))
        left = max(0, floor((self.tau - (tat - now)) / self.T))
        if delay > wait_ms:
            return Decision(False, self.limit, left, ceil(tat), delay), delay
        new = tat + self.T * cost
        left = max(0, floor((self.tau - (new - now)) / self.T))
        return Decision(True, self.limit, left, ceil(new), 0), delay

    def refund(self, now: int, units: int, charged: Decision, charged_at: int) -> None:
        # Units that time has not replenished, the last of them perhaps in part.
        back = min(self.T * units, float(charged.reset_at - now))
        if back > 0 and self.tat is not None and self.tat > now:
            self.tat = max(self.tat - back, float(now))
        self.loose_ms += 2

    def charge(self, now: int, units: int) -> None:
        tat = self._tat(now)
        # Whole units, as far as the key then owes at most one limit.
        most = max(0, floor((now + 2 * self.tau - tat) / self.T))
        self.tat = tat + self.T * min(units, most)


class TokenBucket(KeyModel):
    def __init__(self, figures: f.TokenBucket) -> None:
        super().__init__(figures)
        self.r = figures.per_sec / 1000
        self.capacity = float(figures.limit)
        self.clear()

    def clear(self) -> None:
        self.state: tuple[float, int] | None = None

    def _level(self, now: int) -> tuple[float, int]:
        tokens, last = (self.capacity, now) if self.state is None else self.state
        elapsed = max(0, now - last)
        return min(self.capacity, tokens + elapsed * self.r), max(now, last)

    def decide(self, now: int, cost: int) -> Decision:
        tokens, eff = self._level(now)
        allowed = cost == 0 or tokens >= cost
        retry = 0 if allowed else (eff - now) + ceil((cost - tokens) / self.r)
        tokens -= cost if allowed else 0
        reset_at = eff + ceil((self.capacity - tokens) / self.r)
        return Decision(allowed, self.limit, max(0, floor(tokens)), reset_at, retry)

    def take(self, now: int, cost: int) -> None:
        tokens, eff = self._level(now)
        self.state = tokens - cost, eff

    def book(self, now: int, cost: int, wait_ms: int) -> tuple[Decision, int]:
        tokens, eff = self._level(now)
        after = tokens - cost
        delay = (eff - now) + ceil(-after / self.r) if after < 0 else 0
        denied = delay > wait_ms
        kept = tokens if denied else after
        reset_at = eff + ceil((self.capacity - kept) / self.r)
        left = max(0, floor(kept))
        return Decision(not denied, self.limit, left, reset_at, delay if denied else 0), delay

    def refund(self, now: int, units: int, charged: Decision, charged_at: int) -> None:
        tokens, eff = self._level(now)
        if eff > now and tokens < 1:
            # A clock that went back sees a bucket that may be paused, and a refund never ends that.
            self.doubt(eff + 2 * self.figures.span_ms)
        back = min(units, (charged.reset_at - now) * self.r)
        if back > 0 and tokens < self.capacity:
            self.state = min(self.capacity, tokens + back), eff
        self.loose_ms += 2

    def charge(self, now: int, units: int) -> None:
        tokens, eff = self._level(now)
        self.state = tokens - min(units, max(0, floor(tokens + self.capacity))), eff
        self.loose_ms += 1  # for the rounding of the sum


class FixedWindow(KeyModel):
    """`starts` has the window of every unit that was ever counted."""

    def __init__(self, figures: Any) -> None:
        super().__init__(figures)
        self.clear()

    def clear(self) -> None:
        self.start: int | None = None
        self.count = 0

    def _bounds(self, now: int) -> tuple[int, int]:
        """The window of an instant, if no later one is stored."""
        window = self.figures.window_ms
        if self.figures.anchor == "epoch":
            start = now // window * window
        elif self.start is not None and now - self.start < window:
            start = self.start
        else:
            start = now
        return start, start + window

    def _end(self, start: int) -> int:
        return start + int(self.figures.window_ms)

    def _window(self, now: int) -> tuple[int, int, int]:
        """Start, end and count of the window of an instant."""
        start, end = self._bounds(now)
        if self.start is not None and self.start > start:
            start, end = self.start, self._end(self.start)
        return start, end, self.count if self.start == start else 0

    def decide(self, now: int, cost: int) -> Decision:
        _, end, count = self._window(now)
        if cost and count + cost > self.limit:
            return Decision(False, self.limit, max(0, self.limit - count), end, end - now)
        return Decision(True, self.limit, max(0, self.limit - count - cost), end, 0)

    def take(self, now: int, cost: int) -> None:
        start, _, count = self._window(now)
        self.start, self.count = start, count + cost

    def refund(self, now: int, units: int, charged: Decision, charged_at: int) -> None:
        start, end, count = self._window(now)
        # Only what still counts in the window in which it was counted.
        if count and charged.reset_at == end:
            self.start, self.count = start, count - min(units, count)
            if not self.count and self.figures.anchor == "first" and start <= now:
                self.doubt(end)  # whether the window stays open is not fixed

    def charge(self, now: int, units: int) -> None:
        start, end, count = self._window(now)
        self.start, self.count = start, max(count, min(count + units, 2 * self.limit))
        if self.count > self.limit:
            self.doubt(end)


class CalendarQuota(FixedWindow):
    def _bounds(self, now: int) -> tuple[int, int]:
        return period_of(self.figures.period, self.figures.timezone, now)

    def _end(self, start: int) -> int:
        return period_of(self.figures.period, self.figures.timezone, start)[1]

    def refund(self, now: int, units: int, charged: Decision, charged_at: int) -> None:
        start, end, count = self._window(now)
        if count and charged.reset_at == end:
            self.start, self.count = start, count - min(units, count)


@functools.lru_cache(4096)
def _label(period: str, zone: str, at: int) -> tuple[Any, ...]:
    """Equal for instants of one period."""
    utc = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=at)
    here = utc.astimezone(ZoneInfo(zone))
    day = here.date()
    if period == "hour":
        return day, here.hour, here.utcoffset()
    if period == "week":
        return (day - timedelta(days=day.weekday()),)
    return (day,) if period == "day" else (day.year, day.month)


@functools.lru_cache(4096)
def _period(period: str, zone: str, hour: int) -> tuple[int, int]:
    """Start and end of the period that a whole hour is in: the first instants with its label and
    without it."""
    label, longest = _label(period, zone, hour), 40 * 86_400_000
    low, high = hour - longest, hour
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _label(period, zone, middle) == label else (middle, high)
    start, low, high = high, hour, hour + longest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _label(period, zone, middle) == label else (low, middle)
    return start, high


def period_of(period: str, zone: str, at: int) -> tuple[int, int]:
    """Start and end of the period of an instant. Zones here differ from UTC by half hours, so every
    half hour is in one period."""
    return _period(period, zone, at // 1_800_000 * 1_800_000)


class SlidingWindow(KeyModel):
    def __init__(self, figures: f.SlidingWindow) -> None:
        super().__init__(figures)
        self.w = figures.window_ms / figures.buckets
        self.clear()

    def clear(self) -> None:
        self.ticks: dict[int, int] = {}

    def _estimate(self, now: int) -> tuple[int, float, float, float, int, float]:
        w, buckets = self.w, self.figures.buckets
        c = max([floor(now / w), *self.ticks])
        elapsed = max(0, now - c * w)
        weight = min(1.0, max(0.0, (w - elapsed) / w))
        full = sum(n for tick, n in self.ticks.items() if c - buckets + 1 <= tick <= c)
        oldest = self.ticks.get(c - buckets, 0)
        return c, full + oldest * weight, weight, w, oldest, elapsed

    def decide(self, now: int, cost: int) -> Decision:
        c, estimate, weight, w, oldest, _ = self._estimate(now)
        projected = estimate + cost
        reset_at = ceil((c + 1) * w + self.figures.window_ms)
        if cost == 0 or projected <= self.limit:
            left = max(0, floor(self.limit - projected))
            return Decision(True, self.limit, left, reset_at, 0)
        excess = projected - self.limit
        if oldest > 0 and excess <= oldest * weight:
            retry = ceil(excess * w / oldest)
        else:
            retry = ceil((c + 1) * w - now)
        left = max(0, floor(self.limit - estimate))
        return Decision(False, self.limit, left, reset_at, max(1, retry))

    def take(self, now: int, cost: int) -> None:
        c = self._estimate(now)[0]
        self.ticks[c] = self.ticks.get(c, 0) + cost

    def refund(self, now: int, units: int, charged: Decision, charged_at: int) -> None:
        c, w = self._estimate(now)[0], self.w
        counted = round((charged.reset_at - self.figures.window_ms) / w) - 1
        if counted < c - self.figures.buckets:
            return
        later = sorted(tick for tick in self.ticks if tick >= counted)
        if len([tick for tick in later if self.ticks[tick]]) > 1:
            # From which of the ticks it is taken is not fixed.
            self.doubt(ceil((max(later) + 1) * w + self.figures.window_ms) + 2)
            return
        for tick in later:
            self.ticks[tick] -= min(units, self.ticks[tick])

    def charge(self, now: int, units: int) -> None:
        c, estimate, *_ = self._estimate(now)
        self.ticks[c] = self.ticks.get(c, 0) + units
        if estimate + units > self.limit:
            self.doubt(
                ceil((c + 1) * self.w + self.figures.window_ms) + 2 + 2 * self.figures.span_ms
            )


class WindowLog(KeyModel):
    """`stamps` has one instant per unit."""

    def __init__(self, figures: f.WindowLog) -> None:
        super().__init__(figures)
        self.window: int = figures.window_ms
        self.clear()

    def clear(self) -> None:
        self.stamps: list[int] = []

    def _live(self, now: int) -> list[int]:
        return [stamp for stamp in self.stamps if stamp > now - self.window]

    def decide(self, now: int, cost: int) -> Decision:
        live = self._live(now)
        count = len(live)
        reset_at = (live[0] if live else now) + self.window
        if cost == 0 or count + cost <= self.limit:
            return Decision(True, self.limit, max(0, self.limit - count - cost), reset_at, 0)
        k = min(max(count + cost - self.limit, 1), count)
        retry = max(1, live[k - 1] + self.window - now) if live else self.window
        return Decision(False, self.limit, max(0, self.limit - count), reset_at, retry)

    def take(self, now: int, cost: int) -> None:
        live = self._live(now)
        self.stamps = [*live, *[max(now, *live, NEVER)] * cost]

    def refund(self, now: int, units: int, charged: Decision, charged_at: int) -> None:
        live = self._live(now)
        if not now - self.window < charged_at <= now:
            if charged_at > now:
                self.doubt(charged_at + 2 * self.window)
            return
        own = [stamp for stamp in live if stamp >= charged_at]
        if len(set(own)) > 1:
            self.doubt(max(own) + self.window)
            return
        for stamp in own[:units]:
            self.stamps.remove(stamp)
        if not self._live(now):
            self.doubt(now + self.window) if self.stamps else None

    def charge(self, now: int, units: int) -> None:
        live = self._live(now)
        stamp = max(now, *live, NEVER)
        if len(live) + units > self.limit:
            self.doubt(stamp + 2 * self.window)
        self.stamps = [*live, *[stamp] * min(units, self.limit)]


class Slots(KeyModel):
    """`held` maps ids to expiries; ids are the numbers of charges."""

    def __init__(self, figures: f.Slots) -> None:
        super().__init__(figures)
        self.clear()

    def clear(self) -> None:
        self.held: dict[int, int] = {}

    def sure(self, now: int) -> bool:
        if now >= self.unsure_until:
            self.unsure_until = NEVER
        return self.unsure_until == NEVER

    def live(self, now: int) -> dict[int, int]:
        return {name: expiry for name, expiry in self.held.items() if expiry > now}

    def decide(self, now: int, cost: int) -> Decision:
        live = self.live(now)
        first = min(live.values(), default=now)
        if cost == 0:
            return Decision(True, self.limit, max(0, self.limit - len(live)), first, 0)
        if len(live) >= self.limit:
            retry = min(max(first - now, 1), 1_000)
            return Decision(False, self.limit, 0, first, retry)
        first = min([now + self.figures.ttl_ms, *live.values()])
        return Decision(True, self.limit, self.limit - len(live) - 1, first, 0)

    def peek(self, now: int) -> Decision:
        # Nothing is taken, so the earliest expiry is that of a slot that is held.
        one, first = self.decide(now, 1), min(self.live(now).values(), default=now)
        return Decision(one.allowed, self.limit, self.left(now), first, one.retry_after_ms)

    def take(self, now: int, cost: int, name: int = -1) -> None:
        self.held = {**self.live(now), name: now + self.figures.ttl_ms}

    def renew(self, now: int, name: int) -> bool:
        if name not in self.live(now):
            return False
        self.held[name] = max(self.held[name], now + self.figures.ttl_ms)
        return True

    def release(self, now: int, name: int) -> None:
        if self.held.pop(name, 0) <= now:
            # It had expired. A clock that goes back may find it again until then.
            self.doubt(now + self.figures.ttl_ms)

    def forecast(self, now: int, cost: int) -> Forecast:
        live = self.live(now)
        free = max(0, self.limit - len(live))
        if not live:
            return Forecast(free // cost, now, now)
        return Forecast(free // cost, min(live.values()), max(live.values()))


class Unlimited(KeyModel):
    def clear(self) -> None: ...

    def decide(self, now: int, cost: int) -> Decision:
        return Decision(True, MAX, MAX, now, 0)

    def take(self, now: int, cost: int) -> None: ...

    def refund(self, now: int, units: int, charged: Decision, charged_at: int) -> None: ...

    def charge(self, now: int, units: int) -> None: ...

    def forecast(self, now: int, cost: int) -> Forecast:
        return Forecast(MAX // cost, now, now)


_MODELS: dict[type, Callable[[Any], KeyModel]] = {
    f.Gcra: Gcra,
    f.TokenBucket: TokenBucket,
    f.FixedWindow: FixedWindow,
    f.SlidingWindow: SlidingWindow,
    f.WindowLog: WindowLog,
    f.CalendarQuota: CalendarQuota,
    f.Slots: Slots,
    f.Unlimited: Unlimited,
}


def model_of(figures: f.Figures) -> KeyModel:
    """A cold key of this limit."""
    return _MODELS[type(figures)](figures)
