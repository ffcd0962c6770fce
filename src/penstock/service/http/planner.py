"""From a head to a plan: who asks, for which path, and how much body that takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from urllib.parse import parse_qsl, unquote_to_bytes

from ...core.validation import MAX_KEY_BYTES
from .access import Token, is_cross_site
from .answers import Answers
from .bounds import Bounds
from .calls import Calls
from .head import Head, parse_head
from .pages import Pages
from .plan import Answer, Plan
from .problem import Problem, ProblemError

__all__ = ["Planner"]

_LEGACY_QUERY = ("headers", "x")
_PAGE_QUERIES = {"/ready": (("store", "1"),)}


class Planner:
    """`stopping` makes every plan the last of its connection."""

    def __init__(
        self,
        calls: Calls,
        pages: Pages,
        answers: Answers,
        bounds: Bounds,
        token: Token,
        legacy: bool,
    ) -> None:
        self._answers = answers
        self._bounds = bounds
        self._token = token
        self._legacy = legacy
        self._calls = calls
        self._pages = pages
        self.stopping = False
        self._posts: dict[str, tuple[Callable[[bool, bytes], Answer], int]] = {
            "/check": (calls.check, bounds.body_bytes),
            "/v1/check": (calls.v1_check, bounds.body_bytes),
            "/v1/check-many": (calls.v1_check_many, bounds.batch_bytes),
            "/v1/peek": (calls.v1_peek, bounds.body_bytes),
            "/v1/forecast": (calls.v1_forecast, bounds.body_bytes),
            "/v1/debit": (calls.v1_debit, bounds.body_bytes),
            "/v1/admit": (calls.v1_admit, bounds.body_bytes),
            "/v1/release": (calls.v1_release, bounds.body_bytes),
            "/v1/heartbeat": (calls.v1_heartbeat, bounds.batch_bytes),
        }

    def plan(self, raw: bytes) -> Plan:
        """The plan for a head. Raises where the connection cannot go on."""
        head = parse_head(raw, self._bounds)
        try:
            answer, max_bytes = self._route(head)
        except ProblemError as error:
            problem, max_bytes = error.problem, self._bounds.body_bytes
            answer = partial(_refuse, self._answers, problem)
        return Plan(
            answer,
            head.length,
            max_bytes,
            last=self.stopping or not head.keep_alive,
            bare=head.method == "HEAD",
            expects="expect" in head.headers,
        )

    def _route(self, head: Head) -> tuple[Callable[[bytes], Answer], int]:
        if head.headers.get("expect", "100-continue").lower() != "100-continue":
            raise ProblemError("expectation_failed", "the one expectation known is 100-continue")
        trusted = self._token.accept(head.headers.get("authorization"))
        if not trusted and head.path not in self._pages.open:
            raise ProblemError(
                "unauthorized",
                "send the token as Authorization: Bearer <token>",
                ('WWW-Authenticate: Bearer realm="penstock"',),
            )
        page = self._pages.get(head.path)
        if page is not None:
            _require_method(head, "GET", "HEAD")
            if _require_query(head, *_PAGE_QUERIES.get(head.path, ())):
                page = self._pages.ready_with_store
            return partial(page, trusted), self._bounds.body_bytes
        if is_cross_site(head.headers):
            raise ProblemError("cross_site", "pages of other sites may not ask")
        return self._decide(head)

    def _decide(self, head: Head) -> tuple[Callable[[bytes], Answer], int]:
        if (post := self._posts.get(head.path)) is not None:
            _require_method(head, "POST")
            call, max_bytes = post
            return partial(call, self._wants_legacy(head)), max_bytes
        lead, _, client = head.path[1:].partition("/")
        if lead != "check" or not client or "/" in client:
            raise ProblemError("not_found", "there is no such path; /openapi.json lists them")
        _require_method(head, "GET")
        call_client = partial(self._calls.check_client, self._wants_legacy(head), _client(client))
        return call_client, self._bounds.body_bytes

    def _wants_legacy(self, head: Head) -> bool:
        asked = _require_query(head, _LEGACY_QUERY)
        named = head.headers.get("x-ratelimit-format")
        if named is not None and named.lower() != "legacy":
            raise ProblemError("config_invalid", "the one X-RateLimit-Format known is legacy")
        return self._legacy or asked or named is not None


def _refuse(answers: Answers, problem: Problem, _body: bytes) -> bytes:
    return answers.problem(problem)


def _require_method(head: Head, *methods: str) -> None:
    if head.method not in methods:
        allow = ", ".join(methods)
        raise ProblemError("method_not_allowed", f"use {allow}", (f"Allow: {allow}",))


def _require_query(head: Head, *known: tuple[str, str]) -> bool:
    """Whether one of the `known` parameters is there. Any other is refused: one that was meant to
    change the answer, and does not, would go unnoticed."""
    pairs = parse_qsl(head.query, keep_blank_values=True)
    if any(pair not in known for pair in pairs):
        listed = " or ".join(f"?{name}={value}" for name, value in known) or "none"
        raise ProblemError("config_invalid", f"unknown query parameter; known here: {listed}")
    return bool(pairs)


def _client(encoded: str) -> str:
    try:
        client = unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise ProblemError("config_invalid", "the client's name is not UTF-8") from None
    if len(client) > MAX_KEY_BYTES:
        raise ProblemError("config_invalid", f"a name has at most {MAX_KEY_BYTES} bytes")
    return client
