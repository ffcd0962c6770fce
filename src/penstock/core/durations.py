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
}
_DURATION = r"\s*([0-9]{1,15})?\s*([a-z]+)\s*"
_RATE = r"\s*([0-9]{1,16})\s*/(.+)"


def parse_duration_ms(text: Any) -> int:
    """`"30s"` is 30000. A bare unit counts as one of it: `"minute"` is 60000."""
    match = re.fullmatch(_DURATION, text.lower(), re.ASCII) if isinstance(text, str) else None
    unit_ms = _UNIT_MS.get(match[2]) if match else None
    if match is None or unit_ms is None:
        reject(
            f"a duration is a number and a unit, such as '500ms', '30s' or '1h', not {shown(text)}"
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
            f"a rate is a count and a period, such as '100/minute' or '5/30s', not {shown(text)}"
        )
    return int(match[1]), parse_duration_ms(match[2])
