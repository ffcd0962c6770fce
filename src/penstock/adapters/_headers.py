"""Decisions as HTTP headers and as gRPC trailers. Pure functions that need neither gRPC nor
protobuf.

`RateLimit` and `RateLimit-Policy` are structured fields of the IETF draft. `RateLimit-Policy` is
what the policy grants, `"name";q=100;w=60`: a quota of 100 per window of 60 s, without `w` if the
strategy has no window. `RateLimit` is the current state, `"name";r=9;t=6`: 9 remain, and in 6 s
there will be more. `t` is not the time until everything is back. On a denial it equals
`Retry-After`, and it is 0 if nothing has been spent. Seconds are rounded up, so that a client that
waits that long never comes too early.

With several limits, both headers are lists with one member per limit, the binding one first.
Shadows are left out: they concern the operator, not the client.

Over gRPC a denial says when to retry in two ways: as `grpc-retry-pushback-ms`, which client
libraries with a retry policy follow by themselves, and as a `google.rpc.RetryInfo` in the details
of the status, for programs. These few fields are encoded here, so that no package of protos is
needed.

google.rpc.Status: code = 1, message = 2, details = 3, each an Any: type_url = 1, value = 2.
RetryInfo: retry_delay = 1, a Duration: seconds = 1, nanos = 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..core._decision import Decision
from ..core._strategy import Strategy
from ..core._verdict import Verdict

if TYPE_CHECKING:
    from .._limits import Limits

__all__ = [
    "LimitHeaders",
    "VerdictHeaders",
    "decision_headers",
    "field_name",
    "legacy_headers",
    "policy_field",
    "retry_after_s",
    "retry_delay_ms",
    "retry_trailers",
    "seconds_until_more",
    "verdict_headers",
]


# The largest integer that a structured field can carry.
_MAX_INTEGER = 10**15 - 1
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def decision_headers(
    name: str,
    strategy: Strategy | None,
    decision: Decision,
    now: int,
    *,
    peeked: bool = False,
    legacy: bool = False,
) -> dict[str, str]:
    """All headers for one decision of the limit `name`, made at `now`.

    `strategy` is that of the limit: `limiter.strategy`, or None for slots of a
    `ConcurrencyLimiter`.
    `peeked` says that the decision is one of `peek`. `legacy` adds the older `X-RateLimit-*`
    headers, whose reset is the instant at which everything is back, in epoch seconds.

        decision = limiter.check(user)
        headers = decision_headers("api", limiter.strategy, decision, limiter.clock.now())
    """
    quota, window_ms = (decision.limit, None) if strategy is None else strategy.rate
    made = LimitHeaders(name, quota, window_ms, strategy)
    return made.of(decision, now, peeked=peeked, legacy=legacy)


class LimitHeaders:
    """`decision_headers` for many decisions of one limit: what they have in common is formatted
    once. `policy` is the value of `RateLimit-Policy`."""

    __slots__ = ("_lead", "_strategy", "policy")

    def __init__(
        self, name: str, quota: int, window_ms: int | None, strategy: Strategy | None
    ) -> None:
        self.policy: str = policy_field(name, quota, window_ms)
        self._lead = field_name(name)
        self._strategy = strategy

    def of(
        self, decision: Decision, now: int, *, peeked: bool = False, legacy: bool = False
    ) -> dict[str, str]:
        """The headers for one decision, made at `now`."""
        headers = {
            "RateLimit-Policy": self.policy,
            "RateLimit": self.member(decision, now, peeked),
        }
        if not decision.allowed:
            headers["Retry-After"] = str(retry_after_s(decision))
        if legacy:
            headers |= legacy_headers(decision)
        return headers

    def member(self, decision: Decision, now: int, peeked: bool = False) -> str:
        """The member of `RateLimit` for one decision, made at `now`."""
        remaining = decision.remaining if decision.remaining <= _MAX_INTEGER else _MAX_INTEGER
        seconds = seconds_until_more(self._strategy, decision, now, peeked)
        return f"{self._lead};r={remaining};t={seconds}"


def verdict_headers(
    limits: Limits, verdict: Verdict, now: int, *, peeked: bool = False, legacy: bool = False
) -> dict[str, str]:
    """All headers for the verdict of `limits` at `now`, with the binding limit first.

    `peeked` says that the verdict is one of `peek`. `legacy` adds the older `X-RateLimit-*`
    headers, for the binding limit only.

        verdict = limits.check({"user": user})
        headers = verdict_headers(limits, verdict, limits.clock.now())
    """
    return VerdictHeaders(limits.limits).of(verdict, now, peeked=peeked, legacy=legacy)


class VerdictHeaders:
    """`verdict_headers` for many verdicts. `limits` maps names to objects with a `strategy` and a
    `shadow`; the `strategy` is None if only a service knows it. A verdict of a service's policy may
    contain limits that are not in `limits`."""

    __slots__ = ("_made", "only")

    def __init__(self, limits: Mapping[str, Any]) -> None:
        self._made: dict[str, LimitHeaders | None] = {}
        for name, limit in limits.items():
            if not limit.shadow:
                strategy: Strategy | None = limit.strategy
                self._made[name] = (
                    None if strategy is None else LimitHeaders(name, *strategy.rate, strategy)
                )
        alone = len(limits) == len(self._made) == 1
        self.only: LimitHeaders | None = next(iter(self._made.values())) if alone else None
        """The headers of the only limit, if there is just one and it is not a shadow."""

    def of(
        self, verdict: Verdict, now: int, *, peeked: bool = False, legacy: bool = False
    ) -> dict[str, str]:
        """The headers for one verdict at `now`; none if all limits are shadows."""
        if self.only is not None:
            return self.only.of(verdict.decisions[0], now, peeked=peeked, legacy=legacy)
        told = dict(verdict.enforced)
        if not told:
            return {}
        first = verdict.binding
        decision = told.pop(first)
        headers = self._named(first, decision).of(decision, now, peeked=peeked, legacy=legacy)
        for name, decision in told.items():
            made = self._named(name, decision)
            headers["RateLimit-Policy"] += f", {made.policy}"
            headers["RateLimit"] += f", {made.member(decision, now, peeked)}"
        return headers

    def _named(self, name: str, decision: Decision) -> LimitHeaders:
        return self._made.get(name) or LimitHeaders(name, decision.limit, None, None)


def legacy_headers(decision: Decision) -> dict[str, str]:
    """The older headers, whose reset is an instant in epoch seconds."""
    return {
        "X-RateLimit-Limit": str(decision.limit),
        "X-RateLimit-Remaining": str(decision.remaining),
        "X-RateLimit-Reset": str(-(-decision.reset_at // 1000)),
    }


def seconds_until_more(
    strategy: Strategy | None, decision: Decision, now: int, peeked: bool = False
) -> int:
    """Whole seconds until more than `decision.remaining` is available: the `t` of `RateLimit`.

    For a `sliding_window`, whose decisions do not say when its units were counted, it is an upper
    bound; for slots, the time until the lease expires unless it is renewed.
    """
    if not decision.allowed:
        return retry_after_s(decision)
    if decision.remaining >= decision.limit:
        return 0
    if strategy is None:
        ms: float = decision.reset_at - now
    else:
        ms = strategy.more_in_ms(decision, now, peeked)
    return ceil(ms / 1000) if ms > 1000 else 1


def retry_after_s(decision: Decision) -> int:
    """The value of `Retry-After` for a denial: whole seconds, at least 1."""
    return max(1, -(-decision.retry_after_ms // 1000))


def policy_field(name: str, quota: int, window_ms: int | None) -> str:
    """The value of `RateLimit-Policy`, without `w` if there is no window."""
    told = f"{field_name(name)};q={min(quota, _MAX_INTEGER)}"
    return told if window_ms is None else f"{told};w={max(1, -(-window_ms // 1000))}"


def field_name(name: str) -> str:
    """A policy's name as a string of a structured field. Other than ASCII is percent-encoded."""
    text = quote(name, safe=_PRINTABLE, errors="replace")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_RESOURCE_EXHAUSTED = 8
_PUSHBACK = "grpc-retry-pushback-ms"
_DETAILS = "grpc-status-details-bin"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"

_VARINT, _BYTES = 0, 2


def retry_trailers(text: str, delay_ms: int) -> tuple[tuple[str, str | bytes], ...]:
    """The trailers of a RESOURCE_EXHAUSTED, with when to retry."""
    seconds, ms = divmod(delay_ms, 1000)
    delay = _number(1, seconds) + _number(2, ms * 1_000_000)
    info = _field(1, _RETRY_INFO.encode()) + _field(2, _field(1, delay))
    status = _number(1, _RESOURCE_EXHAUSTED) + _field(2, text.encode()) + _field(3, info)
    return ((_PUSHBACK, str(delay_ms)), (_DETAILS, status))


def retry_delay_ms(trailers: Iterable[Any] | None) -> int | None:
    """The wait in the trailers of a denied call; None if there is none, or it cannot be read."""
    told = {str(key).lower(): value for key, value in trailers or ()}
    text = str(told.get(_PUSHBACK, ""))
    if text.isascii() and text.isdigit():
        return int(text)
    details = told.get(_DETAILS)
    try:
        return _retry_info_ms(details) if isinstance(details, bytes) else None
    except (IndexError, ValueError):
        return None


def _retry_info_ms(status: bytes) -> int | None:
    for number, detail in _fields(status):
        if number != 3 or not isinstance(detail, bytes):
            continue
        parts: dict[int, Any] = dict(_fields(detail))
        if parts.get(1) != _RETRY_INFO.encode():
            continue
        delay: dict[int, Any] = dict(_fields(dict(_fields(parts.get(2, b""))).get(1, b"")))
        return int(delay.get(1, 0)) * 1000 + -(-int(delay.get(2, 0)) // 1_000_000)
    return None


def _number(field: int, value: int) -> bytes:
    return bytes((field << 3 | _VARINT,)) + _varint(value) if value else b""


def _field(field: int, payload: bytes) -> bytes:
    return bytes((field << 3 | _BYTES,)) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: Any) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message. Raises IndexError or ValueError if it cannot be parsed."""
    if not isinstance(message, bytes):
        raise ValueError("not a message")
    at = 0
    while at < len(message):
        tag, at = _read(message, at)
        value, at = _read(message, at)
        if tag & 7 == _VARINT:
            yield tag >> 3, value
        elif tag & 7 == _BYTES:
            yield tag >> 3, message[at : at + value]
            at += value
        else:
            raise ValueError("a field of another type")


def _read(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
