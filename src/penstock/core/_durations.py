"""Durations and rates as text: parsed from what people write, and formatted for people to read.

`"500ms"`, `"1m"` and `"100/minute"` are parsed; "5 in any 15 minutes" is formatted. Such texts are
for the edges (a config file, a command line, `rate_limit("...")`); everywhere else a duration is an
integer whose name ends with `_ms`.
"""

from __future__ import annotations

import re
from typing import Any

from ._validation import MAX_SPAN_MS, reject, shown

__all__ = [
    "UNIT_MS",
    "number_in_words",
    "pace_in_words",
    "parse_duration_ms",
    "parse_rate",
    "rate_in_words",
    "span_in_words",
    "wait_in_words",
]


_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
UNIT_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), _SECOND),
    **dict.fromkeys(("m", "min", "minute", "minutes"), _MINUTE),
    **dict.fromkeys(("h", "hour", "hours"), _HOUR),
    **dict.fromkeys(("d", "day", "days"), _DAY),
    **dict.fromkeys(("w", "week", "weeks"), 7 * _DAY),
}
_UNEVEN = ("month", "months", "year", "years", "quarter", "quarters")
_DURATION = r"\s*([0-9]{1,15})?\s*([a-z]+)\s*"
_RATE = r"\s*([0-9]{1,16})\s*/(.+)"
# What people write instead of the slash.
_SPOKEN = r"\s*([0-9]{1,16})\s*(?:per|an?|each|every|in|-|:|\\)\s*([a-z0-9 ]+)"


def parse_duration_ms(text: Any) -> int:
    """`"30s"` is 30000. A bare unit counts as one of it: `"minute"` is 60000."""
    match = re.fullmatch(_DURATION, text.lower(), re.ASCII) if isinstance(text, str) else None
    unit_ms = UNIT_MS.get(match[2]) if match else None
    if match is None or unit_ms is None:
        reject(
            "a duration is a number and a unit, such as '500ms', '30s' or '1h', not "
            f"{shown(text)}{_near(match[2]) if match else ''}"
        )
    duration = int(match[1] or 1) * unit_ms
    if not 1 <= duration <= MAX_SPAN_MS:
        reject(f"a duration must lie between 1 and {MAX_SPAN_MS} ms, not {shown(text)}")
    return duration


def parse_rate(text: Any) -> tuple[int, int]:
    """`"100/minute"` is `(100, 60000)`; `"5/30s"` is `(5, 30000)`."""
    match = re.fullmatch(_RATE, text, re.ASCII | re.DOTALL) if isinstance(text, str) else None
    if match is not None and text.count("/") > 1:
        _refuse_several(text)
    if match is None:
        reject(
            "a rate is a whole count and a period, such as '100/minute' or '5/30s', not "
            f"{shown(text)}{_meant(text) if isinstance(text, str) else ''}"
        )
    return int(match[1]), parse_duration_ms(match[2])


def _refuse_several(text: str) -> None:
    """Reject a text of several rates, and say how several limits are written."""
    rates = [each.strip() for each in re.split(r"[;,|&+]|\band\b", text) if each.strip()]
    if len(rates) > 1 and all(re.fullmatch(_RATE, each, re.ASCII) for each in rates):
        pairs = zip("abcdefgh", rates, strict=False)
        named = ", ".join(f"'{name}': {rate!r}" for name, rate in pairs)
        listed = ", ".join(map(repr, rates))
        reject(
            f"a rate is one limit, not {shown(text)}; several limits are several rules: "
            f"Limits({{{named}}}), and where an integration takes limits, one after the other: "
            f"{listed}"
        )


def _near(unit: str) -> str:
    """The end of a message about an unknown unit."""
    from difflib import get_close_matches

    if unit in _UNEVEN:
        return f": a {unit.removesuffix('s')} has no fixed length, so say it in days, such as '30d'"
    near = get_close_matches(unit, UNIT_MS, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; the units are {', '.join(_SHOWN)}"


_SHOWN = ("ms", "second", "minute", "hour", "day", "week")
_WHOLE = _SHOWN[:0:-1]
_EXACT_MS = 10_000


def _meant(text: str) -> str:
    """The end of a message about a rate in another notation."""
    spoken = re.fullmatch(_SPOKEN, text.lower(), re.ASCII)
    if spoken is not None:
        period = re.fullmatch(_DURATION, spoken[2], re.ASCII)
        if period is not None and period[2] not in UNIT_MS:
            return _near(period[2])
        return f"; did you mean '{spoken[1]}/{spoken[2].strip()}'?"
    if re.fullmatch(r"\s*[0-9]*\.[0-9]+\s*/.+", text, re.ASCII):
        return "; for a fraction take a longer period: half a request a second is '1/2s'"
    return ""


def number_in_words(value: float) -> str:
    """With commas between thousands: 1,000 and 2.5."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def span_in_words(span_ms: int) -> str:
    """In the largest unit that divides it: 15 minutes, 1 hour, 1,500 ms."""
    for unit in _WHOLE:
        count, rest = divmod(span_ms, UNIT_MS[unit])
        if count and not rest:
            return f"{count:,} {unit}{'s' * (count > 1)}"
    return f"{span_ms:,} ms"


def wait_in_words(wait_ms: int, *, exact: bool = False) -> str:
    """A wait for people, rounded up: 90 s, 45 minutes, 30 hours, 13 days. With `exact`, for errors
    in a program, waits below ten seconds are in milliseconds."""
    if exact and wait_ms < _EXACT_MS:
        return f"{wait_ms} ms"
    for unit, least in (("day", 2), ("hour", 2), ("minute", 3)):
        if wait_ms >= least * UNIT_MS[unit]:
            return f"{-(-wait_ms // UNIT_MS[unit]):,} {unit}s"
    return f"{max(1, -(-wait_ms // 1000))} s"


def rate_in_words(units: float, span_ms: int, *, of: str = "", sliding: bool = False) -> str:
    """100 a minute, 5 per 15 minutes; 5 in any 15 minutes where the span is `sliding`. `of` names
    the units."""
    span = span_in_words(span_ms)
    one = span.startswith("1 ") and span != "1 ms"
    span = span[2:] if one else span
    how = "in any " if sliding else "per " if not one else "an " if span == "hour" else "a "
    return f"{number_in_words(units)} {of + ' ' if of else ''}{how}{span}"


def pace_in_words(per_sec: float) -> str:
    """A rate in the shortest unit in which it is at least 1: 2.5 a second, 30 a minute."""
    for unit in _SHOWN[1:-1]:
        per_unit = per_sec * UNIT_MS[unit] / 1000
        # Rounded, because a product such as 0.1 * 60 is not exact.
        if round(per_unit, 9) >= 1 or unit == "day":
            break
    return rate_in_words(float(per_unit), UNIT_MS[unit])
