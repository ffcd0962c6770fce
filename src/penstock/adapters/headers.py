"""Decisions as HTTP headers. Pure: names and numbers in, text out.

`RateLimit` and `RateLimit-Policy` are structured fields, after the IETF draft: the first tells
what is left (`"name";r=9;t=60`), the second what the policy grants (`"name";q=10;w=60`). Seconds
are whole and rounded up, so that a client that waits as told never comes too early.
"""

from __future__ import annotations

from urllib.parse import quote

from ..core.decision import Decision

__all__ = [
    "decision_headers",
    "field_name",
    "policy_field",
    "remaining_field",
    "retry_after_s",
    "seconds_until",
]

# The largest integer that a structured field can carry.
_MAX_INTEGER = 10**15 - 1
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def field_name(name: str) -> str:
    """A policy's name as a structured field's string. What ASCII lacks is percent-encoded."""
    text = quote(name, safe=_PRINTABLE, errors="replace")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def policy_field(name: str, limit: int, window_ms: int | None) -> str:
    """The value of `RateLimit-Policy`. A policy without a window goes without `w`."""
    quota = f"{field_name(name)};q={min(limit, _MAX_INTEGER)}"
    return quota if window_ms is None else f"{quota};w={max(1, -(-window_ms // 1000))}"


def remaining_field(name: str, decision: Decision, now: int) -> str:
    """The value of `RateLimit`, for a decision made at `now`."""
    remaining = min(decision.remaining, _MAX_INTEGER)
    return f"{field_name(name)};r={remaining};t={seconds_until(decision.reset_at, now)}"


def seconds_until(instant: int, now: int) -> int:
    """Whole seconds from `now` to `instant`, both in epoch ms; 0 if it has passed."""
    return -(-(instant - now) // 1000) if instant > now else 0


def retry_after_s(decision: Decision) -> int:
    """The value of `Retry-After` for a denial: whole seconds, at least 1."""
    return max(1, -(-decision.retry_after_ms // 1000))


def decision_headers(
    name: str, window_ms: int | None, decision: Decision, now: int, *, legacy: bool = False
) -> dict[str, str]:
    """All headers for one decision. `legacy` adds the older `X-RateLimit-*`, whose reset is the
    instant itself, in epoch seconds."""
    headers = {
        "RateLimit-Policy": policy_field(name, decision.limit, window_ms),
        "RateLimit": remaining_field(name, decision, now),
    }
    if not decision.allowed:
        headers["Retry-After"] = str(retry_after_s(decision))
    if legacy:
        headers["X-RateLimit-Limit"] = str(decision.limit)
        headers["X-RateLimit-Remaining"] = str(decision.remaining)
        headers["X-RateLimit-Reset"] = str(-(-decision.reset_at // 1000))
    return headers
