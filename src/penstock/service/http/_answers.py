"""Replies of the HTTP server as bytes, and errors as `application/problem+json`.

Each error has a `code` that programs may branch on, which is never renamed. Its detail is for
people, and may quote what the client sent: it is escaped as JSON and never logged. Exceptions are
turned into problems here; only internal errors are logged.

A reply is made in one piece, mostly from text that is ready: the headers that name a policy are
kept per policy, and the date is formatted once a second. Every reply is counted by its status.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, TypeAlias

from ...adapters._headers import LimitHeaders, field_name, seconds_until_more
from ...core import native
from ...core._clock import Clock
from ...core._decision import Decision
from ...core._errors import (
    ConfigInvalidError,
    OverloadedError,
    QueueFullError,
    StoreUnavailableError,
    TooLargeError,
    UnsupportedError,
)
from ...core._strategy import Strategy
from .._core import Policy, UnknownPolicyError

__all__ = [
    "CLIENT",
    "CODES",
    "JSON",
    "NESTED",
    "PLAIN",
    "SOON",
    "Answer",
    "Answers",
    "Label",
    "Problem",
    "ProblemError",
    "Work",
    "decision_body",
    "json_bytes",
    "problem_of",
]


CODES: dict[str, tuple[int, str]] = {
    "malformed_request": (400, "The bytes are not a well-formed HTTP request."),
    "malformed_json": (400, "The body is not a JSON object in UTF-8."),
    "config_invalid": (400, "A field is missing, unknown, of the wrong type or out of range."),
    "unauthorized": (401, "The bearer token is missing or wrong."),
    "cross_site": (403, "A browser sent the request on behalf of another site."),
    "not_found": (404, "There is no such path."),
    "unknown_policy": (404, "There is no policy of that name."),
    "method_not_allowed": (405, "The path has other methods; `Allow` lists them."),
    "request_timeout": (408, "The request did not arrive in time."),
    "body_too_large": (413, "The body is longer than the path takes."),
    "too_much_at_once": (
        413,
        "The request asks for more than one call may; split it.",
    ),
    "expectation_failed": (417, "`Expect` asks for something other than 100-continue."),
    "unknown_host": (421, "`Host` is not a name under which this service is asked."),
    "head_too_large": (431, "The request line and headers are too long or too many."),
    "internal_error": (500, "A fault of the service; its log says more."),
    "not_implemented": (501, "The policy or the server does not have the operation."),
    "store_unavailable": (503, "The store did not answer, or is full: `reason` says which."),
    "overloaded": (503, "More is asked than can be answered soon; retry later."),
    "stopping": (503, "The service is being stopped."),
    "version_not_supported": (505, "The server speaks HTTP/1.1 and HTTP/1.0."),
}
"""Code to status and meaning: what the server may answer instead of a decision."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error reply. `headers` are further header lines, without their line ends; `reason`
    distinguishes errors with the same code."""

    code: str
    detail: str
    headers: tuple[str, ...] = ()
    reason: str = ""

    @property
    def status(self) -> int:
        return CODES[self.code][0]

    def body(self) -> bytes:
        document = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.reason:
            document["reason"] = self.reason
        return json.dumps(document).encode()


class ProblemError(Exception):
    """Carries a problem from where it is found to where it is answered."""

    def __init__(self, code: str, detail: str, headers: tuple[str, ...] = ()) -> None:
        super().__init__(code, detail, headers)
        self.problem: Problem = Problem(code, detail, headers)

    def __str__(self) -> str:
        return self.problem.detail

    @classmethod
    def of(cls, problem: Problem) -> ProblemError:
        return cls(problem.code, problem.detail, problem.headers)


SOON = ("Retry-After: 1",)

_log = logging.getLogger("penstock.http")


def problem_of(error: BaseException) -> Problem:
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, UnknownPolicyError):
        return Problem("unknown_policy", str(error))
    if isinstance(error, TooLargeError):
        return Problem("too_much_at_once", str(error))
    if isinstance(error, ConfigInvalidError):
        return Problem("config_invalid", str(error))
    if isinstance(error, UnsupportedError):
        return Problem("not_implemented", str(error))
    if isinstance(error, OverloadedError):
        return Problem("overloaded", "more is asked than the store answers in time", SOON)
    if isinstance(error, StoreUnavailableError):
        # The text contains the address of the store, which clients must not see.
        detail = "the store is full" if error.reason == "full" else "the store did not answer"
        return Problem("store_unavailable", detail, SOON, error.reason)
    if isinstance(error, QueueFullError):
        return Problem("overloaded", str(error), SOON)
    _log.error("a request failed", exc_info=error)
    return Problem("internal_error", "the service failed; its log says more")


Work: TypeAlias = "Callable[[], Coroutine[Any, Any, bytes]]"
"""How to get a reply that has to wait: called when there is a place for it, or begun, if it is a
`Later` that can be."""

Answer: TypeAlias = "bytes | Work"
"""A whole reply, or a function that makes one when the store has answered."""

JSON = "application/json"
_PROBLEM = "application/problem+json"
_MAX_INTEGER = 10**15 - 1
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_MAX_LABELS = 1_024


class Label:
    """The headers of one limit. `lines` are its header lines up to the numbers; `headers` makes all
    of them."""

    __slots__ = ("headers", "lines", "strategy")

    def __init__(
        self, name: str, quota: int, window_ms: int | None, strategy: Strategy | None
    ) -> None:
        self.headers: LimitHeaders = LimitHeaders(name, quota, window_ms, strategy)
        self.strategy: Strategy | None = strategy
        lines = f"RateLimit-Policy: {self.headers.policy}\r\nRateLimit: {field_name(name)};r="
        self.lines: bytes = lines.encode("ascii")


PLAIN, NESTED, CLIENT = 0, 1, 2
"""The form of a decision: for `POST /check`, the calls under `/v1`, `GET /check/{client}`."""


def decision_reply(head: bytes, lines: bytes, decision: Decision, seconds: int, form: int) -> bytes:
    """A reply about one decision. Has a compiled twin."""
    body = decision_body(decision, form)
    denied = b"" if decision.allowed else b"\r\nRetry-After: %d" % seconds
    return b"%bContent-Length: %d\r\n%b%d;t=%d%b\r\n\r\n%b" % (
        head,
        len(body),
        lines,
        min(decision.remaining, _MAX_INTEGER),
        seconds,
        denied,
        body.encode("ascii"),
    )


def decision_body(decision: Decision, form: int) -> str:
    """The body of a reply about one decision."""
    if form != CLIENT:
        told = decision_json(decision)
        return f'{{"decision":{told}}}' if form == NESTED else told
    allowed, message = "true", ""
    if not decision.allowed:
        allowed = "false"
        message = f', "message": "rate limit exceeded; window resets at {decision.reset_at}"'
    mode = "" if decision.degraded is None else f', "degraded": "{decision.degraded}"'
    return (
        f'{{"allowed": {allowed}, "remaining": {decision.remaining}, '
        f'"resetAt": {decision.reset_at}{message}{mode}}}'
    )


class DecisionReplies:
    """The first lines of replies about decisions, by status, and their counts. Has a compiled twin,
    which counts the replies that compiled code makes."""

    __slots__ = ("allowed_head", "denied", "denied_head", "ok")

    def __init__(self) -> None:
        self.allowed_head = self.denied_head = b""
        self.ok = self.denied = 0

    def count(self, status: int) -> None:
        if status == 200:
            self.ok += 1
        else:
            self.denied += 1


_decision_reply = decision_reply if native is None else native.decision_reply


class Answers:
    """Makes replies and counts them by status. `stamp` is the date, to be renewed with `tick`."""

    def __init__(self, clock: Clock) -> None:
        # Replies about one decision. A Counter would take a tenth of their time.
        self.replies: Any = DecisionReplies() if native is None else native.DecisionReplies()
        self._statuses: Counter[int] = Counter()
        self._now = clock.now
        self._labels: dict[tuple[str, int, int | None, Strategy | None], Label] = {}
        self.tick()

    @property
    def statuses(self) -> dict[int, int]:
        """The number of replies, by status."""
        counted = self._statuses.copy()
        counted.update({200: self.replies.ok, 429: self.replies.denied})
        return {status: count for status, count in counted.items() if count}

    def tick(self) -> None:
        """Renew the date."""
        self.stamp: str = f"Date: {formatdate(self._now() / 1000, usegmt=True)}\r\n"
        self.replies.allowed_head = self._head_of(200, JSON)
        self.replies.denied_head = self._head_of(429, JSON)

    def label(
        self, name: str, quota: int, window_ms: int | None, strategy: Strategy | None
    ) -> Label:
        """The label of the limit by `strategy`, None for slots, that grants `quota`."""
        wanted = (name, quota, window_ms, strategy)
        found = self._labels.get(wanted)
        if found is None:
            if len(self._labels) >= _MAX_LABELS:
                self._labels.clear()
            found = self._labels[wanted] = Label(*wanted)
        return found

    def policy_label(self, policy: Policy | None, name: str, decision: Decision) -> Label:
        """The label of a policy of one limit."""
        if policy is None:
            # A reload has removed the policy meanwhile.
            return self.label(name, decision.limit, None, None)
        return self.label(name, policy.quota, policy.window_ms, policy.strategy)

    def decided(
        self, decision: Decision, label: Label, form: int, legacy: bool, peeked: bool = False
    ) -> bytes:
        """A reply about one decision. A denial is a 429, except under `/v1`."""
        status = 200 if decision.allowed or form == NESTED else 429
        if legacy:
            body = decision_body(decision, form)
            return self.with_limits(status, label, decision, body, legacy, peeked)
        replies = self.replies
        replies.count(status)
        head = replies.allowed_head if status == 200 else replies.denied_head
        seconds = seconds_until_more(label.strategy, decision, self._now(), peeked)
        return _decision_reply(head, label.lines, decision, seconds, form)

    def with_limits(
        self,
        status: int,
        label: Label,
        decision: Decision,
        body: str,
        legacy: bool,
        peeked: bool = False,
    ) -> bytes:
        """A reply with the headers that belong to a decision. `body` is ASCII."""
        headers = label.headers.of(decision, self._now(), peeked=peeked, legacy=legacy)
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return self.with_lines(status, lines, body)

    def with_lines(self, status: int, lines: str, body: str) -> bytes:
        """A reply with these header lines. `body` is ASCII."""
        replies = self.replies
        replies.count(status)
        return b"%bContent-Length: %d\r\n%b\r\n%b" % (
            replies.allowed_head if status == 200 else replies.denied_head,
            len(body),
            lines.encode("ascii"),
            body.encode("ascii"),
        )

    def plain(
        self, status: int, body: bytes, kind: str = JSON, headers: tuple[str, ...] = ()
    ) -> bytes:
        """A reply that is not about one decision."""
        self._statuses[status] += 1
        lines = "".join(f"{line}\r\n" for line in headers)
        rest = f"X-Content-Type-Options: nosniff\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        return b"%b%b%b" % (self._head_of(status, kind), rest.encode("ascii"), body)

    def document(self, status: int, value: Any, headers: tuple[str, ...] = ()) -> bytes:
        return self.plain(status, json_bytes(value), headers=headers)

    def problem(self, problem: Problem) -> bytes:
        return self.plain(problem.status, problem.body(), _PROBLEM, problem.headers)

    def _head_of(self, status: int, kind: str) -> bytes:
        """The lines that every reply begins with."""
        lines = f"{_LINES[status]}{self.stamp}Content-Type: {kind}\r\nCache-Control: no-store\r\n"
        return lines.encode("ascii")


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decision_json(decision: Decision) -> str:
    allowed = "true" if decision.allowed else "false"
    mode = "" if decision.degraded is None else f',"degraded":"{decision.degraded}"'
    return (
        f'{{"allowed":{allowed},"remaining":{decision.remaining},"limit":{decision.limit},'
        f'"reset_at":{decision.reset_at},"retry_after_ms":{decision.retry_after_ms}{mode}}}'
    )
