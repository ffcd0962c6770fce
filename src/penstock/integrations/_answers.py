"""The rate limits that a response reports. Pure functions: headers in, numbers out.

Three kinds of headers are read. `Retry-After`, in seconds or as a date, and its variant in
milliseconds. `RateLimit` and `RateLimit-Policy`, structured fields of the IETF draft, and the forms
of older drafts. And the families of `X-RateLimit-Remaining`, with a reset in seconds from now, as
an instant, or as `6m0s`; providers of language models have one for requests and one for tokens.

Headers that cannot be parsed are ignored: a malformed header must not fail a call that succeeded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from math import ceil, isfinite
from typing import Any, NamedTuple

__all__ = ["REFUSALS", "Advice", "Quota", "advice_of", "parts_of", "span_ms"]

REFUSALS = frozenset({429, 503, 529})
"""Statuses of a server that is overloaded or limits a client; 529 is an overloaded model."""

_REQUESTS, _TOKENS = "requests", "tokens"


class Quota(NamedTuple):
    """What is left of one quota, and in how many milliseconds it resets; None: not reported."""

    remaining: int | None
    more_in_ms: int | None


class Advice(NamedTuple):
    """What a client should do after a response."""

    pause_ms: int
    """How long to send nothing; 0: continue."""
    quotas: Mapping[str, Quota]
    """What is left of `requests` and of `tokens`, if reported."""


def advice_of(status: int, headers: Mapping[str, Any], now: int) -> Advice:
    """Read a response that arrived at the instant `now` (epoch ms)."""
    told = _Headers(headers)
    quotas = _quotas(told, now)
    # Some servers answer 403 to too many requests; a 403 of any other kind has no `Retry-After`.
    wait_ms = told.retry_after_ms(now) if status in REFUSALS or status == 403 else None
    if wait_ms is not None:
        return Advice(wait_ms, quotas)
    spent = [
        quota.more_in_ms
        for quota in quotas.values()
        if quota.more_in_ms is not None and (quota.remaining == 0 or status == 429)
    ]
    return Advice(max(spent, default=0), quotas)


def parts_of(answer: Any) -> tuple[int, Mapping[str, Any]] | None:
    """Status and headers of an answer, or of the one that an error was raised for: httpx, requests,
    aiohttp, urllib and the clients of model providers keep them in one of these ways."""
    for held in (getattr(answer, "response", None), answer):
        status = getattr(held, "status_code", None) or getattr(held, "status", None)
        headers = getattr(held, "headers", None)
        if isinstance(status, int) and headers is not None and hasattr(headers, "items"):
            return status, headers
    return None


def span_ms(text: str, now: int, *, instants: bool = True) -> int | None:
    """Milliseconds until a reset, from seconds, `6m0s`, a date, or, as a large number, an instant
    in epoch seconds or milliseconds. None if it is none of these; 0 if it has passed."""
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        found = _duration_ms(text)
        at = _date_ms(text) if found is None else None
        return found if at is None else max(0, at - now)
    if not isfinite(number) or number < 0:
        return None
    if not instants or number < 10**9:
        return _whole_ms(number * 1000)
    return max(0, ceil(number if number >= 10**11 else number * 1000) - now)


class _Headers:
    """Headers of any client library, by their names in lower case."""

    def __init__(self, headers: Mapping[str, Any]) -> None:
        self._values = {str(name).lower(): str(value) for name, value in headers.items()}

    def get(self, *names: str) -> str | None:
        for name in names:
            if name in self._values:
                return self._values[name]
        return None

    def number(self, *names: str) -> int | None:
        """A count. Some servers write a fraction, or a list for several windows."""
        text = self.get(*names)
        if text is None:
            return None
        try:
            value = float(text.split(",")[0].split(";")[0])
        except ValueError:
            return None
        return max(0, int(value)) if isfinite(value) else None

    def span(self, now: int, *names: str) -> int | None:
        text = self.get(*names)
        return None if text is None else span_ms(text, now)

    def retry_after_ms(self, now: int) -> int | None:
        text = self.get("retry-after-ms")
        if text is not None and (ms := span_ms(text, now, instants=False)) is not None:
            return ceil(ms / 1000)
        text = self.get("retry-after")
        if text is None:
            return None
        if _date_ms(text) is None:
            return span_ms(text, now, instants=False)
        # By the `Date` of the response, if there is one: both are from the clock of the server.
        there = _date_ms(self.get("date") or "")
        return span_ms(text, now if there is None else there)


def _quotas(told: _Headers, now: int) -> dict[str, Quota]:
    found: dict[str, Quota] = {}
    for unit in (_REQUESTS, _TOKENS):
        quota = Quota(
            told.number(f"x-ratelimit-remaining-{unit}", f"anthropic-ratelimit-{unit}-remaining"),
            told.span(now, f"x-ratelimit-reset-{unit}", f"anthropic-ratelimit-{unit}-reset"),
        )
        if quota != (None, None):
            found[unit] = quota
    if _REQUESTS not in found:
        general = _structured(told) or _plain(told, now)
        if general is not None:
            found[_REQUESTS] = general
    return found


def _plain(told: _Headers, now: int) -> Quota | None:
    families = ("x-ratelimit", "x-rate-limit", "ratelimit")
    quota = Quota(
        told.number(*(f"{family}-remaining" for family in families)),
        told.span(
            now,
            "x-ratelimit-reset-after",
            *(f"{family}-reset" for family in families),
        ),
    )
    return None if quota == (None, None) else quota


_MEMBER = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[A-Za-z*][\w.:*/-]*)((?:\s*;[^,"]*(?:"[^"]*")?)*)')
_PARAMETER = re.compile(r';\s*([a-z*][\w.*-]*)=("[^"]*"|[^;,\s]+)')
_OLDER = re.compile(r"\b(limit|remaining|reset)=(\d+)")


def _structured(told: _Headers) -> Quota | None:
    """The member of `RateLimit` with the least left. Quotas that count anything but requests are
    ignored."""
    text = told.get("ratelimit")
    if text is None:
        return None
    older = dict(_OLDER.findall(text))
    if "remaining" in older:
        return Quota(_whole(older["remaining"]), _seconds_ms(older.get("reset")))
    policies = dict(_members(told.get("ratelimit-policy") or ""))
    quotas = []
    for name, parameters in _members(text):
        policy = policies.get(name, {})
        if policy.get("qu", '"requests"').strip('"') != "requests" or "r" not in parameters:
            continue
        # The reset cannot be further away than a window that is reported.
        more = _seconds_ms(parameters.get("t") or policy.get("w"))
        if (remaining := _whole(parameters["r"])) is not None:
            quotas.append(Quota(remaining, more))
    return min(quotas, key=lambda quota: (quota.remaining, -(quota.more_in_ms or 0)), default=None)


def _members(text: str) -> list[tuple[str, dict[str, str]]]:
    return [
        (found[1].strip('"'), dict(_PARAMETER.findall(found[2])))
        for found in _MEMBER.finditer(text)
        if found[2]
    ]


# More than a structured field may have.
_DIGITS = 18


def _whole(text: str | None) -> int | None:
    if text is None or len(text) > _DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def _whole_ms(ms: float) -> int | None:
    return ceil(ms) if isfinite(ms) else None


def _seconds_ms(text: str | None) -> int | None:
    number = _whole(text)
    return None if number is None else number * 1000


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def _duration_ms(text: str) -> int | None:
    if not re.fullmatch(rf"(?:{_DURATION.pattern})+", text):
        return None
    return _whole_ms(sum(float(count) * _UNITS_MS[unit] for count, unit in _DURATION.findall(text)))


def _date_ms(text: str) -> int | None:
    """A date in the format of HTTP or of RFC 3339."""
    try:
        if text[:4].isdigit() and "T" in text.upper():
            at = datetime.fromisoformat(text.upper().replace("Z", "+00:00"))
        else:
            at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    return int(at.timestamp() * 1000)
