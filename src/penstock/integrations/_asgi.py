"""Shared by all ASGI integrations: reading a scope, adding headers, sending refusals.

Decisions about a request, by the middleware of a mounted app or by a dependency, are kept in its
scope (`rulings_of`). The outermost middleware puts them on the response, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ..core._durations import wait_in_words
from ..core._loops import running_loop
from ..core._verdict import Verdict
from ._ruling import PROBLEM_JSON, Answered, Line, Ruling, lines_of
from ._who import NO_ROUTE

__all__ = [
    "POLICY_VIOLATION",
    "ASGIApp",
    "Message",
    "Receive",
    "Scope",
    "ScopeReader",
    "Send",
    "Stamped",
    "answered",
    "is_any_open",
    "is_last",
    "note",
    "refuse_websocket",
    "retry_in_words",
    "rulings_of",
    "send_refusal",
    "settle_all",
    "settle_without_slots",
    "stamp",
]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY_VIOLATION = 1008
"""The code with which a WebSocket is closed."""

_RULINGS = "penstock.rulings"


class ScopeReader:
    """Reads requests that have a `scope`: of this module, of Starlette and of Litestar."""

    def peer(self, request: Any) -> str | None:
        client = request.scope.get("client")
        return client[0] if client else None

    def header(self, request: Any, name: str) -> str | None:
        wanted = name.encode("latin-1")
        found = [value for key, value in request.scope["headers"] if key == wanted]
        return b",".join(found).decode("latin-1") if found else None

    def method(self, request: Any) -> str:
        method: str = request.scope.get("method", "GET")
        return method

    def path(self, request: Any) -> str:
        path: str = request.scope["path"]
        return path

    def route(self, request: Any) -> str:
        return route_template(request.scope)


def route_template(scope: Scope) -> str:
    """The template of the route that serves a scope, with those of its mounts; the path if there
    are no templates. The outermost router is asked, before the app routes: after a mount, the scope
    has only the path of this request, no template of the mount."""
    known: str | None = scope.get("path_template")
    if known:
        return f"{scope.get('root_path', '')}{known}"
    routes = _routes_of(scope.get("router") or scope.get("app"))
    if not routes:
        return str(scope["path"])
    outer = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    # The results of FastAPI's own routing are of no use for routing from the outside again.
    outer.pop("fastapi", None)
    return _template(routes, outer) or NO_ROUTE


def _template(routes: Iterable[Any], scope: Scope) -> str | None:
    """As Starlette's router chooses: the first match, or else the first with another method."""
    partial = None
    for route in routes:
        match, inner = route.matches(scope)
        if match.name == "FULL":
            return _joined(route, {**scope, **inner})
        if match.name == "PARTIAL" and partial is None:
            partial = route, {**scope, **inner}
    return None if partial is None else _joined(*partial)


def _joined(route: Any, scope: Scope) -> str | None:
    """The template of a route, or of the nested one that matches."""
    path = str(getattr(route, "path_format", None) or getattr(route, "path", ""))
    below, mounted = _routes_of(route), route
    # A mounted app may be wrapped in middleware.
    while hasattr(route, "routes") and not below and (mounted := getattr(mounted, "app", None)):
        below = _routes_of(mounted)
    if not below:
        return path
    found = _template(below, scope)
    return None if found is None else f"{path.removesuffix('/{path}')}{found}"


def _routes_of(app: Any) -> list[Any]:
    """The routes that can match a scope, with those of routers that FastAPI includes
    unchanged."""
    found: list[Any] = []
    for route in getattr(app, "routes", None) or ():
        included = getattr(route, "effective_route_contexts", None)
        if included is not None:
            found += [getattr(each, "starlette_route", None) or each for each in included()]
        elif hasattr(route, "matches"):
            found.append(route)
    return found


def rulings_of(scope: Scope) -> tuple[list[Ruling], bool]:
    """The decisions about this request so far, and whether the caller is the first to ask: the
    first one puts the headers on the response."""
    found: list[Ruling] | None = scope.get(_RULINGS)
    if found is not None:
        return found, False
    scope[_RULINGS] = []
    return scope[_RULINGS], True


def note(scope: Scope, ruling: Ruling) -> None:
    """Record a ruling, for the headers and for the view."""
    scope[_RULINGS].append(ruling)
    scope.setdefault("state", {})["rate_limit"] = ruling.shown


# Headers that may be there already, from a view or from a server behind this one.
_OURS = frozenset(
    {
        b"ratelimit",
        b"ratelimit-policy",
        b"retry-after",
        b"x-ratelimit-limit",
        b"x-ratelimit-remaining",
        b"x-ratelimit-reset",
    }
)


class Stamped:
    """A `send` that adds headers to the start of a response, and remembers its status. It returns
    the awaitable of the server's `send`, without a coroutine of its own."""

    __slots__ = ("_rulings", "_send", "answered")

    def __init__(self, send: Send, rulings: list[Ruling]) -> None:
        self._send = send
        self._rulings = rulings
        self.answered: Answered | None = None

    def __call__(self, message: Message) -> Awaitable[None]:
        rulings = self._rulings
        if message["type"] == "http.response.start":
            if rulings:
                # A copy: the app may keep the message and send it again.
                message = {**message}
                if is_any_open(rulings):
                    return self._begin(message)
                stamp(message, rulings)
        elif self.answered is not None and is_last(message):
            return self._settle(message)
        return self._send(message)

    async def _begin(self, message: Message) -> None:
        """What is not held until the end is settled before the headers are sent, which show what is
        left then."""
        self.answered = answered(message["status"], message.get("headers", ()))
        await settle_without_slots(self._rulings, self.answered)
        stamp(message, self._rulings)
        await self._send(message)

    async def _settle(self, message: Message) -> None:
        """Before the client knows that the response is complete, and can send the next request."""
        await settle_all(self._rulings, self.answered)
        await self._send(message)


def stamp(message: Message, rulings: list[Ruling]) -> None:
    """Add the headers of rulings to a message, except those that it has already."""
    given: list[Line] = list(message.get("headers", ()))
    added = lines_of(rulings)
    for name, _ in given:
        if name.lower() in _OURS:
            there = {name.lower() for name, _ in given}
            added = [line for line in added if line[0] not in there]
            break
    message["headers"] = given + added


def answered(status: int, headers: Iterable[Line]) -> Answered:
    """A response as `charge_when` gets it."""
    told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
    return Answered(status, told)


def is_last(message: Message) -> bool:
    """Whether a message ends the response to a request."""
    return message["type"] == "http.response.body" and not message.get("more_body", False)


def is_any_open(rulings: Iterable[Ruling]) -> bool:
    """Whether something is held until the response is known."""
    for ruling in rulings:  # noqa: SIM110 - half the time of any()
        if ruling.held:
            return True
    return False


async def settle_all(rulings: list[Ruling], answered: Any) -> None:
    """Settle open charges, even in a task that is being cancelled."""
    for ruling in rulings:
        if ruling.held:
            await asyncio.shield(running_loop().create_task(ruling.asettle(answered)))


async def settle_without_slots(rulings: Iterable[Ruling], answered: Any) -> None:
    """Settle the open charges that hold no slots, once the status of the response is known."""
    await settle_all([ruling for ruling in rulings if not ruling.holds_slots], answered)


async def send_refusal(
    ruling: Ruling, send: Send, kind: str = "http.response", told: Iterable[Line] = ()
) -> None:
    """Send a refusal as problem+json, by the messages of HTTP or of a WebSocket that was not
    accepted; on the latter nothing else adds the headers."""
    body = ruling.problem()
    headers = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", str(len(body)).encode()),
        *told,
    ]
    await send({"type": f"{kind}.start", "status": ruling.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


async def refuse_websocket(ruling: Ruling, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse it before it is accepted: with 429 if the server supports that, else with a close,
    which servers turn into 403."""
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        told = lines_of(rulings_of(scope)[0] or [ruling])
        await send_refusal(ruling, send, "websocket.http.response", told)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "rate limit"})


def retry_in_words(ruling: Ruling) -> str:
    """The time after which a client may retry."""
    verdict: Verdict | None = ruling.verdict
    return wait_in_words(1_000 if verdict is None else verdict.retry_after_ms)
