"""Answers as bytes.

A reply is made in one piece, from text that is mostly ready: the lines that name a policy are kept
per policy, the date is written once a second. Every reply is counted by its status here.
"""

from __future__ import annotations

import json
from collections import Counter
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from ...adapters.headers import LimitHeaders, field_name, seconds_until_more
from ...core.clock import Clock
from ...core.decision import Decision
from ...core.strategy import Strategy
from .problem import Problem

__all__ = ["JSON", "Answers", "Label"]

JSON = "application/json"
_PROBLEM = "application/problem+json"
_MAX_INTEGER = 10**15 - 1
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_MAX_LABELS = 1_024


class Label(str):
    """The header lines of one limit, up to where its numbers begin, and `headers`, which makes all
    of them."""

    headers: LimitHeaders
    strategy: Strategy | None

    def __new__(
        cls, name: str, quota: int, window_ms: int | None, strategy: Strategy | None
    ) -> Label:
        headers = LimitHeaders(name, quota, window_ms, strategy)
        lines = f"RateLimit-Policy: {headers.policy}\r\nRateLimit: {field_name(name)};r="
        label = super().__new__(cls, lines)
        label.headers = headers
        label.strategy = strategy
        return label


class Answers:
    """Makes replies. `statuses` counts them; `stamp` is the date, to be renewed with `tick`."""

    def __init__(self, clock: Clock) -> None:
        self.statuses: Counter[int] = Counter()
        self._now = clock.now
        self._labels: dict[tuple[str, int, int | None, Strategy | None], Label] = {}
        self.tick()

    def tick(self) -> None:
        """Look at the calendar."""
        self.stamp = f"Date: {formatdate(self._now() / 1000, usegmt=True)}\r\n"

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
        remaining = decision.remaining
        body = (
            f'{{"allowed":true,"remaining":{remaining},"limit":{decision.limit},'
            f'"reset_at":{decision.reset_at},"retry_after_ms":0}}'
        )
        self.statuses[200] += 1
        return (
            f"HTTP/1.1 200 OK\r\n{self.stamp}Content-Type: application/json\r\n"
            f"Cache-Control: no-store\r\nContent-Length: {len(body)}\r\n{label}"
            f"{remaining if remaining <= _MAX_INTEGER else _MAX_INTEGER}"
            f";t={seconds_until_more(label.strategy, decision, self._now())}\r\n\r\n{body}"
        ).encode()

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
        self.statuses[status] += 1
        return (
            f"{_LINES[status]}{self.stamp}Content-Type: application/json\r\n"
            f"Cache-Control: no-store\r\nContent-Length: {len(body)}\r\n{lines}\r\n{body}"
        ).encode()

    def plain(
        self, status: int, body: bytes, kind: str = JSON, headers: tuple[str, ...] = ()
    ) -> bytes:
        """A reply that is not about one decision."""
        self.statuses[status] += 1
        lines = "".join(f"{line}\r\n" for line in headers)
        head = (
            f"{_LINES[status]}{self.stamp}Content-Type: {kind}\r\nCache-Control: no-store\r\n"
            f"X-Content-Type-Options: nosniff\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        )
        return head.encode("ascii") + body

    def document(self, status: int, value: Any, headers: tuple[str, ...] = ()) -> bytes:
        body = json.dumps(value, separators=(",", ":")).encode()
        return self.plain(status, body, headers=headers)

    def problem(self, problem: Problem) -> bytes:
        return self.plain(problem.status, problem.body(), _PROBLEM, problem.headers)


def decision_json(decision: Decision) -> str:
    allowed = "true" if decision.allowed else "false"
    return (
        f'{{"allowed":{allowed},"remaining":{decision.remaining},"limit":{decision.limit},'
        f'"reset_at":{decision.reset_at},"retry_after_ms":{decision.retry_after_ms}}}'
    )
