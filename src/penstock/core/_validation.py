"""Validation of what callers pass, in one place, before any store is touched.

`require_...` functions return the value, so that they can be used in an assignment, or raise
`config_invalid` with a message that says what would be right. `stored_...` functions validate what
a store has kept in the same way, but raise ValueError, since it is not the caller's fault.

The lead of a limiter is its prefix and a colon; a store keeps a state under the lead and the key.
In memory, a key is kept as `kept_key`, so that a caller who chooses keys of 4,096 bytes cannot make
them expensive: a key of more than `LONGEST_KEPT` characters is replaced by its digest, 256 bits of
BLAKE2b under a secret of this process, so that nobody can find two keys that would share their
counts. Its first byte never occurs in UTF-8, so no other key equals a digest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ._errors import ConfigInvalidError

if TYPE_CHECKING:
    from datetime import tzinfo

__all__ = [
    "LONGEST_KEPT",
    "MAX_INSTANT_MS",
    "MAX_KEY_BYTES",
    "MAX_PARTS",
    "MAX_SAFE",
    "MAX_SPAN_MS",
    "MAX_STORED_MS",
    "digest_of",
    "kept_key",
    "key_lead",
    "plain_key",
    "reject",
    "require_choice",
    "require_cost",
    "require_flag",
    "require_instant",
    "require_int",
    "require_key",
    "require_keys",
    "require_options",
    "require_prefix",
    "require_rate",
    "require_span_ms",
    "shown",
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
# How many members or fields of states one call may read or write. A shared store serves no other
# client meanwhile: Valkey 8 takes 1.9 to 2.5 us to add a unit to a log, 0.5 us to read or remove
# one, and 1.7 to 2 us to read a field of a ring (SLOWLOG, one core): about 10 ms for a call.
MAX_PARTS = 5_000


def reject(message: str) -> NoReturn:
    raise ConfigInvalidError(message)


def shown(value: Any) -> str:
    """The `repr` of a value, short enough for a message."""
    try:
        text = repr(value)
    except Exception:
        # Python refuses to print integers of thousands of digits, and a user's __repr__ may raise.
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."


def require_int(name: str, value: Any, low: int = 1, high: int = MAX_SAFE) -> int:
    if type(value) is not int or not low <= value <= high:
        reject(f"{name} must be an integer from {low} to {high}, not {shown(value)}")
    return value


def require_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        reject(f"{name} must be True or False, not {shown(value)}")
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
                f"{shown(value)}; durations as text are for rate_limit('100/minute') and policy "
                "files"
            )
    return require_int(name, value, high=MAX_SPAN_MS)


def require_choice(name: str, value: Any, choices: Sequence[Choice]) -> Choice:
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    reject(f"{name} must be {' or '.join(map(repr, choices))}, not {shown(value)}")


def require_options(given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse an option that is not known, and say which one was meant."""
    from difflib import get_close_matches

    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            reject(f"there is no option {shown(name)}; {hint}")


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
    """As `require_key`, faster for nearly every key."""
    if type(key) is str and key and len(key) <= MAX_KEY_BYTES and key.isascii():
        return key
    return require_key(key)


def require_keys(keys: Any) -> list[Any]:
    """The keys of a batch as a list, each of which `require_key` has yet to validate."""
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
    """A whole number in a stored state; ValueError if it is not one."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{shown(value)}, where a whole number from 0 to {most} should be")
    return value


def stored_number(value: Any, most: int, least: int = 0) -> float:
    """As `stored_whole`, for a number that may have a fraction; not NaN."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{shown(value)}, where a number from {least} to {most} should be")
    number: float = value
    return number


def stored_pair(value: Any) -> tuple[Any, Any]:
    """As `stored_whole`, for a pair of any values."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"{shown(value)}, where a pair should be")
    return value[0], value[1]


def stored_runs(value: Any, last: int) -> tuple[tuple[int, int], ...]:
    """As `stored_whole`, for (instant, count) pairs: at least one, ascending, none after
    `last`."""
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


LONGEST_KEPT = 128
"""In characters, which `len` tells without encoding the key."""

_LEAD = b"\xff"
_SECRET = os.urandom(32)


def key_lead(prefix: str) -> str:
    """What every key begins with: `"prefix:"`, or nothing without a prefix."""
    prefix = require_prefix(prefix)
    return f"{prefix}:" if prefix else ""


def kept_key(key: str) -> str | bytes:
    """The form in which a key is kept in memory: itself, or its digest if it is long."""
    return key if len(key) <= LONGEST_KEPT else digest_of(key)


def digest_of(key: str) -> bytes:
    """The digest under which a long key is kept in memory."""
    from hashlib import blake2b  # most programs have no such key, and do without the module

    return _LEAD + blake2b(key.encode(), digest_size=32, key=_SECRET).digest()
