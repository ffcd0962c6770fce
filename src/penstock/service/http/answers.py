"""Answers as bytes.

A reply is made in one piece, from text that is mostly ready: the lines that name a policy are kept
per policy, the date is written once a second. Every reply is counted by its status here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, TypeAlias

from ...adapters.headers import LimitHeaders, field_name, seconds_until_more
from ...core.clock import Clock
from ...core.decision import Decision
from ...core.strategy import Strategy
from .problem import Problem

__all__ = ["JSON", "Answer", "Answers", "Label", "json_bytes"]

Answer: TypeAlias = "bytes | Callable[[], Coroutine[Any, Any, bytes]]"
"""A reply, or what to await for it, which is called when there is a place for it."""
"""A whole reply, or what will make one when the store has spoken."""

JSON = "application/json"
_PROBLEM = "application/problem+json"
_MAX_INTEGER = 10**15 - 1
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_MAX_LABELS = 1_024


class Label(bytes):
    """The header lines of one limit, up to where its numbers begin, and `headers`, which makes all
    of them."""

    headers: LimitHeaders
    strategy: Strategy | None

    def __new__(
        cls, name: str, quota: int, window_ms: int | None, strategy: Strategy | None
    ) -> Label:
        headers = LimitHeaders(name, quota, window_ms, strategy)
        lines = f"RateLimit-Policy: {headers.policy}\r\nRateLimit: {field_name(name)};r="
        label = super().__new__(cls, lines.encode("ascii"))
        label.headers = headers
        label.strategy = strategy
        return label


class Answers:
    """Makes replies and counts them by status. `stamp` is the date, to be renewed with `tick`."""

    def __init__(self, clock: Clock) -> None:
        # Most replies are a 200 about one decision; a Counter would take a tenth of their time.
        self._decided = 0
        self._statuses: Counter[int] = Counter()
        self._now = clock.now
        self._labels: dict[tuple[str, int, int | None, Strategy | None], Label] = {}
        self.tick()

    @property
    def statuses(self) -> dict[int, int]:
        """How many replies there were, by their status."""
        counted = self._statuses.copy()
        if self._decided:
            counted[200] += self._decided
        return dict(counted)

    def tick(self) -> None:
        """Look at the calendar."""
        self.stamp: str = f"Date: {formatdate(self._now() / 1000, usegmt=True)}\r\n"
        self._head = self._head_of(200, JSON)

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

    def decided(self, label: Label, decision: Decision, legacy: bool) -> bytes:
        """What `POST /check` answers."""
        if legacy or not decision.allowed:
            status = 200 if decision.allowed else 429
            return self.with_limits(status, label, decision, decision_json(decision), legacy)
        # The same for the common case, in one piece; a test compares the two.
        remaining, reset_at = decision.remaining, decision.reset_at
        body = b'{"allowed":true,"remaining":%d,"limit":%d,"reset_at":%d,"retry_after_ms":0}' % (
            remaining,
            decision.limit,
            reset_at,
        )
        self._decided += 1
        return b"%bContent-Length: %d\r\n%b%d;t=%d\r\n\r\n%b" % (
            self._head,
            len(body),
            label,
            remaining if remaining <= _MAX_INTEGER else _MAX_INTEGER,
            seconds_until_more(label.strategy, decision, self._now()),
            body,
        )

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
        self._statuses[status] += 1
        return b"%bContent-Length: %d\r\n%b\r\n%b" % (
            self._head_of(status, JSON),
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
    return (
        f'{{"allowed":{allowed},"remaining":{decision.remaining},"limit":{decision.limit},'
        f'"reset_at":{decision.reset_at},"retry_after_ms":{decision.retry_after_ms}}}'
    )
