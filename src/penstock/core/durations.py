"""Durations and rates as people write them: `"500ms"`, `"1m"`, `"100/minute"`.

Strings belong to the edges (a config file, a command line, `rate_limit("...")`); inside, a
duration is an integer in a name that ends with `_ms`.
"""

from __future__ import annotations

import re
from typing import Any

from .validation import MAX_SPAN_MS, reject, shown

__all__ = ["parse_duration_ms", "parse_rate"]

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_UNIT_MS = {
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
# What people write in the place of the slash.
_SPOKEN = r"\s*([0-9]{1,16})\s*(?:per|an?|each|every|in|-|:|\\)\s*([a-z0-9 ]+)"


def parse_duration_ms(text: Any) -> int:
    """`"30s"` is 30000. A bare unit counts as one of it: `"minute"` is 60000."""
    match = re.fullmatch(_DURATION, text.lower(), re.ASCII) if isinstance(text, str) else None
    unit_ms = _UNIT_MS.get(match[2]) if match else None
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
    if match is None:
        reject(
            "a rate is a whole count and a period, such as '100/minute' or '5/30s', not "
            f"{shown(text)}{_meant(text) if isinstance(text, str) else ''}"
        )
    return int(match[1]), parse_duration_ms(match[2])


def _near(unit: str) -> str:
    """The end of a message on a unit that nobody knows."""
    from difflib import get_close_matches

    if unit in _UNEVEN:
        return f": a {unit.removesuffix('s')} has no fixed length, so say it in days, such as '30d'"
    near = get_close_matches(unit, _UNIT_MS, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; the units are {', '.join(_SHOWN)}"


_SHOWN = ("ms", "second", "minute", "hour", "day", "week")


def _meant(text: str) -> str:
    """The end of a message on a rate in another form."""
    spoken = re.fullmatch(_SPOKEN, text.lower(), re.ASCII)
    if spoken is not None:
        return f"; did you mean '{spoken[1]}/{spoken[2].strip()}'?"
    if re.fullmatch(r"\s*[0-9]*\.[0-9]+\s*/.+", text, re.ASCII):
        return "; for a fraction take a longer period: half a request a second is '1/2s'"
    return ""
