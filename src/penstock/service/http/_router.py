"""Routing: from the head of a request to its call, after checking access and bounds.

Heads differ from request to request, but rarely in what affects the answer. So routes are cached by
the reduced form of a head (`_head.py`). The cache is small, and emptied when it is full; strangers
have a cache of their own, so that they cannot empty that of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from ...core._validation import MAX_KEY_BYTES
from .._access import BearerToken
from ._answers import Answer, Answers, Problem, ProblemError
from ._calls import Calls
from ._head import Bounds, Head, Hosts, is_cross_site, parse_head, reduce_head
from ._pages import Pages

__all__ = ["Route", "Router", "Routes"]


_MAX_ROUTES = 1_024
_MAX_HEAD_BYTES = 2_048
_LEGACY_QUERY = "headers=x"
_READY_QUERIES = ("store=1", "verbose=1", "store=1&verbose=1", "verbose=1&store=1")


@dataclass(slots=True)
class Route:
    """`answer` takes the body, and before it the client if the path is for any.

    `is_known`: the client is authenticated, and the path is not a probe. `needs_place`: an answer
    that has to wait waits for the store. `last` means that the connection ends with this reply, and
    `bare` that the reply is sent without its body, as for HEAD. `expects`: the client waits for 100
    Continue. `problem` is why the request is refused, whatever its body. `ready` answers it in
    compiled code, if it is not None."""

    answer: Callable[..., Answer]
    max_bytes: int
    is_known: bool = True
    needs_place: bool = True
    last: bool = False
    bare: bool = False
    expects: bool = False
    problem: Problem | None = None
    ready: Any = None
    shaped: bool = field(init=False)

    def __post_init__(self) -> None:
        self.shaped = self.last or self.bare

    def with_answer(self, answer: Callable[[bytes], Answer], problem: Problem | None) -> Route:
        """The same route with another answer."""
        return Route(
            answer,
            self.max_bytes,
            self.is_known,
            self.needs_place,
            self.last,
            self.bare,
            self.expects,
            problem,
        )


class Routes:
    """Routes by reduced head: those of `known` clients, and those of strangers."""

    def __init__(
        self,
        make: Callable[[bytes], Route],
        for_client: Callable[[Route, bytes], Route],
        bounds: Bounds,
    ) -> None:
        self.known: dict[bytes, Route] = {}
        self._strangers: dict[bytes, Route] = {}
        self._make = make
        self._for_client = for_client
        self._bounds = bounds

    def find(self, raw: bytes) -> tuple[Route, int]:
        """The route for a head, and the length of the body. Raises if the connection has to be
        closed."""
        reduced, length, client = reduce_head(raw, self._bounds)
        route = self.known.get(reduced) or self._strangers.get(reduced) or self._new(reduced)
        return route if client is None else self._for_client(route, client), length

    def forget(self) -> None:
        """Clear the caches."""
        self.known.clear()
        self._strangers.clear()

    def _new(self, reduced: bytes) -> Route:
        route = self._make(reduced)
        if len(reduced) <= _MAX_HEAD_BYTES:
            memory = self.known if route.is_known else self._strangers
            if len(memory) >= _MAX_ROUTES:
                memory.clear()
            memory[reduced] = route
        return route


_CHALLENGE = ('WWW-Authenticate: Bearer realm="penstock"',)

# Calls that change counts without deciding a request.
_FOR_OPERATORS = ("/v1/pause", "/v1/reset")


class Router:
    """Finds routes. Without a `token`, access is open to all clients. With `hosts`, the `Host` of a
    request must be one of these. Once `is_stopping` is set, every route is the last of its
    connection."""

    def __init__(
        self,
        calls: Calls,
        pages: Pages,
        answers: Answers,
        bounds: Bounds,
        *,
        token: BearerToken | None,
        hosts: Hosts | None,
        legacy: bool,
        ready: Mapping[str, Any],
    ) -> None:
        self._answers = answers
        self._bounds = bounds
        self._token = token
        self._hosts = hosts
        self._legacy = legacy
        self._ready = ready
        self._calls = calls
        self._pages = pages
        self.is_stopping = False
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
            "/v1/reserve": (calls.charges.v1_reserve, bounds.charge_bytes),
            "/v1/settle": (calls.charges.v1_settle, bounds.charge_bytes),
            "/v1/cancel": (calls.charges.v1_cancel, bounds.charge_bytes),
            "/v1/renew": (calls.charges.v1_renew, bounds.charge_bytes),
            "/v1/pause": (calls.charges.v1_pause, bounds.charge_bytes),
            "/v1/reset": (calls.charges.v1_reset, bounds.charge_bytes),
        }

    def long_bodies(self) -> dict[str, int]:
        """The paths whose bodies may be longer than others."""
        posts = ((path, max_bytes) for path, (_, max_bytes) in self._posts.items())
        return {path: size for path, size in posts if size > self._bounds.body_bytes}

    def route(self, raw: bytes) -> Route:
        """The route for a reduced head. Raises if the connection has to be closed."""
        head = parse_head(raw, self._bounds)
        trusted = self._token is None or self._token.accept(head.headers.get("authorization"))
        problem = None
        try:
            answer, max_bytes = self._answer(head, trusted)
        except ProblemError as error:
            problem, max_bytes = error.problem, self._bounds.body_bytes
            answer = partial(_refuse, self._answers, problem)
        last = self.is_stopping or not head.keep_alive
        ready = self._ready.get(head.path)
        if ready is not None and (problem is not None or last or self._wants_legacy(head)):
            ready = None
        return Route(
            answer,
            max_bytes,
            is_known=trusted and head.path not in self._pages.probes,
            needs_place=self._pages.get(head.path) is None,
            last=last,
            bare=head.method == "HEAD",
            expects=head.is_modern and "expect" in head.headers,
            problem=problem,
            ready=ready,
        )

    def for_client(self, route: Route, encoded: bytes) -> Route:
        """The route for the client that a path names, from that for any."""
        if route.problem is not None:
            return route
        try:
            client = _client(encoded)
        except ProblemError as error:
            return route.with_answer(partial(_refuse, self._answers, error.problem), error.problem)
        return route.with_answer(partial(route.answer, client), None)

    def _answer(self, head: Head, trusted: bool) -> tuple[Callable[[bytes], Answer], int]:
        self._require_host(head)
        if head.headers.get("expect", "100-continue").lower() != "100-continue":
            raise ProblemError("expectation_failed", "the one expectation known is 100-continue")
        if not trusted and head.path not in self._pages.probes:
            raise ProblemError(
                "unauthorized",
                "send the token as Authorization: Bearer <token>",
                _CHALLENGE,
            )
        if head.path == "/":
            _require_method(head, "GET", "HEAD")
            return self._pages.to_docs, self._bounds.body_bytes
        if head.path == "/docs":
            _require_method(head, "GET", "HEAD")
            _require_query(head)
            host = head.headers.get("host", "localhost")
            return partial(self._pages.docs, host), self._bounds.body_bytes
        page = self._pages.get(head.path)
        if page is not None:
            _require_method(head, "GET", "HEAD")
            if _require_query(head, *(_READY_QUERIES if head.path == "/ready" else ())):
                page = partial(self._pages.ready, head.query)
            return partial(page, trusted), self._bounds.body_bytes
        # No page of another site can know the token.
        if self._token is None and is_cross_site(head.headers):
            raise ProblemError("cross_site", "pages of other sites may not ask")
        return self._decide(head)

    def _require_host(self, head: Head) -> None:
        host = head.headers.get("host")
        if self._hosts is not None and host is not None and not self._hosts.accept(host):
            raise ProblemError(
                "unknown_host", f"this service is not asked as {host!r}; see --allowed-hosts"
            )

    def _decide(self, head: Head) -> tuple[Callable[[bytes], Answer], int]:
        if (post := self._posts.get(head.path)) is not None:
            _require_method(head, "POST")
            if head.path in _FOR_OPERATORS and self._token is None:
                raise ProblemError(
                    "unauthorized",
                    "this is for operators, who have a token; start the service with --token-file "
                    "or PENSTOCK_TOKEN",
                    _CHALLENGE,
                )
            call, max_bytes = post
            return partial(call, self._wants_legacy(head)), max_bytes
        lead, _, client = head.path[1:].partition("/")
        if lead != "check" or not client or "/" in client:
            raise ProblemError("not_found", "there is no such path; /openapi.json lists them")
        _require_method(head, "GET")
        call_client = partial(self._calls.check_client, self._wants_legacy(head))
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


def _require_query(head: Head, *known: str) -> bool:
    """Whether there is a query, one of those that are `known`. Any other is refused: otherwise a
    misspelt one would be ignored without notice."""
    if head.query not in ("", *known):
        listed = ", ".join([f"?{each}" for each in known]) or "none"
        raise ProblemError("config_invalid", f"unknown query; known here: {listed}")
    return head.query != ""


def _client(encoded: bytes) -> str:
    try:
        client = unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise ProblemError("config_invalid", "the client's name is not UTF-8") from None
    if len(client) > MAX_KEY_BYTES:
        raise ProblemError("config_invalid", f"a name has at most {MAX_KEY_BYTES} bytes")
    return client
