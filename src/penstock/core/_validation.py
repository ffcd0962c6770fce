"""What a caller may pass, checked in one place, before any store is touched.

Each function returns the value it was given, so that it can stand in an assignment, or raises
`config_invalid` with a text that says what would be right.

Durations and rates as people write them, `"500ms"`, `"1m"`, `"100/minute"`, and as one would say
them, "5 in any 15 minutes". Such texts belong to the edges (a config file, a command line,
`rate_limit("...")`); inside, a duration is an integer in a name that ends with `_ms`.

How a prefix and a key become the name under which a store keeps state, and what is kept of it.

This is the only place that knows: a limiter asks once for its lead and then concatenates, and
whoever remembers keys in this process does so under `kept_key`.

A caller may choose a key of 4,096 bytes; what it costs to remember should not be the caller's
choice. Beyond `LONGEST_KEPT` characters a key is known by its digest: BLAKE2b of 256 bits under a
secret of this process, so that nobody can find two keys that would share their counts. Its first
byte never occurs in UTF-8, so that no other key is equal to a digest.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ._errors import ConfigInvalidError

if TYPE_CHECKING:
    from datetime import tzinfo

__all__ = [
    "LONGEST_KEPT",
    "MAX_INSTANT_MS",
    "MAX_KEY_BYTES",
    "MAX_SAFE",
    "MAX_SPAN_MS",
    "MAX_STORED_MS",
    "UNIT_MS",
    "digest_of",
    "kept_key",
    "key_lead",
    "number_in_words",
    "pace_in_words",
    "parse_duration_ms",
    "parse_rate",
    "plain_key",
    "rate_in_words",
    "reject",
    "require_choice",
    "require_cost",
    "require_instant",
    "require_int",
    "require_key",
    "require_keys",
    "require_prefix",
    "require_rate",
    "require_span_ms",
    "shown",
    "span_in_words",
    "stored_number",
    "stored_pair",
    "stored_runs",
    "stored_whole",
    "zone_of",
]


Choice = TypeVar("Choice", bound=str)

# The largest integer that a double, and so Lua and JavaScript, represents without a gap.
MAX_SAFE = 2**53 - 1
MAX_KEY_BYTES = 4096
# The longest period, window or refill time: about 139 years. Longer ones push instants out of the
# range in which doubles still resolve a millisecond.
MAX_SPAN_MS = 2**42
# The latest instant a clock may show, in the year 4199. Up to here the ticks of the finest sliding
# window are still whole doubles; a clock that counts microseconds by mistake is well beyond it.
MAX_INSTANT_MS = 2**46
# The latest instant that a state may name: the longest span after the latest `now`, rounded up.
MAX_STORED_MS = 2**47


def reject(message: str) -> NoReturn:
    raise ConfigInvalidError(message)


def shown(value: Any) -> str:
    """What somebody passed in, short enough for a message."""
    try:
        text = repr(value)
    except Exception:
        # Python declines to spell out integers of thousands of digits, and objects of the user's
        # may do anything.
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."


def require_int(name: str, value: Any, low: int = 1, high: int = MAX_SAFE) -> int:
    if type(value) is not int or not low <= value <= high:
        reject(f"{name} must be an integer from {low} to {high}, not {shown(value)}")
    return value


def require_rate(name: str, value: Any) -> float:
    """A positive, finite, normal number: one whose reciprocal is finite too."""
    if type(value) not in (int, float) or not 0 < value <= MAX_SAFE or not math.isfinite(1 / value):
        reject(f"{name} must be a finite number above 0, not {shown(value)}")
    return float(value)


def require_span_ms(name: str, value: Any) -> int:
    """A period or a window: whole milliseconds, or a timedelta of as many."""
    if type(value) is not int:
        # Most programs never need it, and loading it takes time.
        from datetime import timedelta

        if isinstance(value, timedelta):
            ms, rest = divmod(value, timedelta(milliseconds=1))
            if rest:
                reject(f"{name} must be whole milliseconds, not {shown(value)}")
            value = ms
        elif isinstance(value, str):
            reject(
                f"{name} must be an integer from 1 to {MAX_SPAN_MS}, or a timedelta, not "
                f"{shown(value)}; durations in words are for rate_limit('100/minute') and for "
                "policy files"
            )
    return require_int(name, value, high=MAX_SPAN_MS)


def require_choice(name: str, value: Any, choices: Sequence[Choice]) -> Choice:
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    reject(f"{name} must be {' or '.join(map(repr, choices))}, not {shown(value)}")


def zone_of(name: str, value: Any) -> tzinfo:
    """The time zone of that IANA name."""
    if not isinstance(value, str):
        reject(f"{name} must be the IANA name of a time zone, such as 'UTC', not {shown(value)}")
    # Most programs never need them, and loading them takes time.
    from datetime import timezone

    if value == "UTC":
        return timezone.utc  # which needs no data
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(value)
    except (LookupError, ValueError, OSError):
        pass
    reject(_unknown_zone(name, value))


def _unknown_zone(name: str, value: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    known = available_timezones()
    if not known:
        return (
            f"{name} cannot be {shown(value)} on this machine, which has no time zone data; "
            "install the package tzdata: pip install tzdata"
        )
    near = get_close_matches(value, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ", such as 'Europe/Berlin'"
    return f"{name} must be the IANA name of a time zone, not {shown(value)}{hint}"


def require_cost(cost: Any) -> int:
    return require_int("cost", cost)


def require_key(key: Any) -> str:
    if not isinstance(key, str):
        reject(f"key must be a string, not {shown(key)}; convert it first, as in str(user_id)")
    if not key:
        reject("key must not be empty; use a constant such as 'all' for one shared limit")
    # ASCII strings know their length in bytes, which spares nearly every call the encoding.
    if not key.isascii() or len(key) > MAX_KEY_BYTES:
        _require_utf8("key", key)
    return key if type(key) is str else str.__str__(key)


def plain_key(key: Any) -> str:
    """The same; what nearly every key is takes no call."""
    if type(key) is str and key and len(key) <= MAX_KEY_BYTES and key.isascii():
        return key
    return require_key(key)


def require_keys(keys: Any) -> list[Any]:
    """The keys of a batch, as a list; each of them is for `require_key`."""
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        reject(f"keys must be a list of keys, not {shown(keys)}")
    return list(keys)


def require_prefix(prefix: Any) -> str:
    if not isinstance(prefix, str):
        reject(f"prefix must be a string, not {shown(prefix)}")
    _require_utf8("prefix", prefix)
    return str.__str__(prefix)


def _require_utf8(name: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        reject(f"{name} must be valid Unicode text; {shown(text)} holds a lone surrogate")
    if size > MAX_KEY_BYTES:
        reject(
            f"{name} must be at most {MAX_KEY_BYTES} bytes in UTF-8, not {size}; "
            "hash long identifiers first"
        )


def stored_whole(value: Any, most: int) -> int:
    """A whole number of a state that was kept elsewhere; ValueError if it cannot be one."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{shown(value)}, where a whole number from 0 to {most} should be")
    return value


def stored_number(value: Any, most: int, least: int = 0) -> float:
    """The same for a number that may have a fraction. NaN is none."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{shown(value)}, where a number from {least} to {most} should be")
    number: float = value
    return number


def stored_pair(value: Any) -> tuple[Any, Any]:
    """The same for a pair of anything."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"{shown(value)}, where a pair should be")
    return value[0], value[1]


def stored_runs(value: Any, last: int) -> tuple[tuple[int, int], ...]:
    """The same for (instant, count) pairs: at least one, ascending, none after `last`."""
    if not isinstance(value, (tuple, list)) or not value:
        raise ValueError(f"{shown(value)}, where pairs should be")
    runs = tuple(map(stored_pair, value))
    before = 0
    for at, count in runs:
        if stored_whole(at, last) < before:
            raise ValueError(f"{at} after {before}, where pairs should ascend")
        stored_whole(count, MAX_SAFE)
        before = at
    return runs


def require_instant(now: Any) -> int:
    """An epoch instant in ms, as a clock returns it."""
    if type(now) is not int or not 0 <= now <= MAX_INSTANT_MS:
        reject(f"now must be epoch milliseconds from 0 to {MAX_INSTANT_MS}, not {shown(now)}")
    return now


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
# What people write in the place of the slash.
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
    near = get_close_matches(unit, UNIT_MS, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; the units are {', '.join(_SHOWN)}"


_SHOWN = ("ms", "second", "minute", "hour", "day", "week")
_WHOLE = _SHOWN[:0:-1]


def _meant(text: str) -> str:
    """The end of a message on a rate in another form."""
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
    """In the largest unit that it is a whole number of: 15 minutes, 1 hour, 1,500 ms."""
    for unit in _WHOLE:
        count, rest = divmod(span_ms, UNIT_MS[unit])
        if count and not rest:
            return f"{count:,} {unit}{'s' * (count > 1)}"
    return f"{span_ms:,} ms"


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
        # Beyond what is shown, a product such as 0.1 * 60 has digits that nobody wrote.
        if round(per_unit, 9) >= 1 or unit == "day":
            break
    return rate_in_words(float(per_unit), UNIT_MS[unit])


LONGEST_KEPT = 128
"""In characters, which a string knows without being looked at."""

_LEAD = b"\xff"
_SECRET = os.urandom(32)


def key_lead(prefix: str) -> str:
    """What stands before every key: `"prefix:"`, or nothing when there is no prefix."""
    prefix = require_prefix(prefix)
    return f"{prefix}:" if prefix else ""


def kept_key(key: str) -> str | bytes:
    """What to remember a key by, in this process."""
    return key if len(key) <= LONGEST_KEPT else digest_of(key)


def digest_of(key: str) -> bytes:
    """What stands for a long key in this process."""
    from hashlib import blake2b  # most programs have no such key, and do without the module

    return _LEAD + blake2b(key.encode(), digest_size=32, key=_SECRET).digest()
