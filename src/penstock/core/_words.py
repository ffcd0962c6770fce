"""Numbers, spans and rates as somebody would say them: 1,000 a minute, 5 in any 15 minutes."""

from __future__ import annotations

__all__ = ["number_in_words", "pace_in_words", "rate_in_words", "span_in_words"]


_UNITS_MS = {
    "week": 604_800_000,
    "day": 86_400_000,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1_000,
}


def number_in_words(value: float) -> str:
    """With commas between thousands: 1,000 and 2.5."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def span_in_words(span_ms: int) -> str:
    """In the largest unit that it is a whole number of: 15 minutes, 1 hour, 1,500 ms."""
    for unit, unit_ms in _UNITS_MS.items():
        if span_ms and span_ms % unit_ms == 0:
            count = span_ms // unit_ms
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
    for unit in ("second", "minute", "hour", "day"):
        per_unit = per_sec * _UNITS_MS[unit] / 1000
        # Beyond what is shown, a product such as 0.1 * 60 has digits that nobody wrote.
        if round(per_unit, 9) >= 1 or unit == "day":
            break
    return rate_in_words(float(per_unit), _UNITS_MS[unit])
