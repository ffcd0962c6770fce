"""What everything that speaks ASGI shares: reading a scope, stamping headers, refusing.

What was decided about a request, by the middleware of a mounted app or by a dependency, is kept in
its scope (`rulings_of`), and told by the outermost middleware, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

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
    "retry_s",
    "rulings_of",
    "send_refusal",
    "settle_all",
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
    """Reads what has a `scope`: the requests of this module, of Starlette and of Litestar."""

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
    """The template of the route that serves a scope, with those of what mounts it; the path where
    nobody routes by templates. It is asked of the outermost router, before routing of the app: once
    a mount was passed, the scope only knows the path that it was mounted at for this request."""
    known: str | None = scope.get("path_template")
    if known:
        return f"{scope.get('root_path', '')}{known}"
    routes = _routes_of(scope.get("router") or scope.get("app"))
    if not routes:
        return str(scope["path"])
    outer = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    # What FastAPI noted down in there while it routed is of no use to route again.
    outer.pop("fastapi", None)
    return _template(routes, outer) or NO_ROUTE


def _template(routes: Iterable[Any], scope: Scope) -> str | None:
    """As Starlette's router chooses: the first that fits, or else the first with another method."""
    partial = None
    for route in routes:
        match, inner = route.matches(scope)
        if match.name == "FULL":
            return _joined(route, {**scope, **inner})
        if match.name == "PARTIAL" and partial is None:
            partial = route, {**scope, **inner}
    return None if partial is None else _joined(*partial)


def _joined(route: Any, scope: Scope) -> str | None:
    """The template of a route, or of the one below it that fits."""
    path = str(getattr(route, "path_format", None) or getattr(route, "path", ""))
    below, mounted = _routes_of(route), route
    # Behind the middleware that may be around what is mounted.
    while hasattr(route, "routes") and not below and (mounted := getattr(mounted, "app", None)):
        below = _routes_of(mounted)
    if not below:
        return path
    found = _template(below, scope)
    return None if found is None else f"{path.removesuffix('/{path}')}{found}"


def _routes_of(app: Any) -> list[Any]:
    """Those that can tell whether they serve a scope, with the ones of routers that FastAPI
    includes as they are."""
    found: list[Any] = []
    for route in getattr(app, "routes", None) or ():
        included = getattr(route, "effective_route_contexts", None)
        if included is not None:
            found += [getattr(each, "starlette_route", None) or each for each in included()]
        elif hasattr(route, "matches"):
            found.append(route)
    return found


def rulings_of(scope: Scope) -> tuple[list[Ruling], bool]:
    """What was decided about this request so far, and whether the one who asks is the first to:
    then the response is theirs to stamp."""
    found: list[Ruling] | None = scope.get(_RULINGS)
    if found is not None:
        return found, False
    scope[_RULINGS] = []
    return scope[_RULINGS], True


def note(scope: Scope, ruling: Ruling) -> None:
    """Have a ruling told to the client, and to the view."""
    scope[_RULINGS].append(ruling)
    scope.setdefault("state", {})["rate_limit"] = ruling.verdict


# What may be there already: of a view that tells its own, or of a server behind this one.
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
    """A `send` that adds headers to the start of a response, and remembers how it began. It hands
    on what the server's `send` returns, to be awaited, without a coroutine of its own."""

    __slots__ = ("_rulings", "_send", "answered")

    def __init__(self, send: Send, rulings: list[Ruling]) -> None:
        self._send = send
        self._rulings = rulings
        self.answered: Answered | None = None

    def __call__(self, message: Message) -> Awaitable[None]:
        rulings = self._rulings
        if message["type"] == "http.response.start":
            if rulings:
                # Whoever sends it may keep it, to send it again.
                message = {**message}
                given = stamp(message, rulings)
                if is_any_open(rulings):
                    self.answered = answered(message["status"], given)
        elif self.answered is not None and is_last(message):
            return self._settle(message)
        return self._send(message)

    async def _settle(self, message: Message) -> None:
        """Before the client can know that it is over, and ask again."""
        await settle_all(self._rulings, self.answered)
        await self._send(message)


def stamp(message: Message, rulings: list[Ruling]) -> list[Line]:
    """Put the headers of rulings on a message, but for those that are there already. Returns what
    was there."""
    given: list[Line] = list(message.get("headers", ()))
    added = lines_of(rulings)
    for name, _ in given:
        if name.lower() in _OURS:
            there = {name.lower() for name, _ in given}
            added = [line for line in added if line[0] not in there]
            break
    message["headers"] = given + added
    return given


def answered(status: int, headers: Iterable[Line]) -> Answered:
    """A response as `charge_when` is shown it."""
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
    """Settle what is open, also in a task that is being cancelled."""
    for ruling in rulings:
        if ruling.held:
            await asyncio.shield(asyncio.ensure_future(ruling.asettle(answered)))


async def send_refusal(
    ruling: Ruling, send: Send, kind: str = "http.response", told: Iterable[Line] = ()
) -> None:
    """A refusal as problem+json, over the messages of HTTP or of a WebSocket that was not accepted,
    which nobody else puts the headers on."""
    body = ruling.problem()
    headers = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", str(len(body)).encode()),
        *told,
    ]
    await send({"type": f"{kind}.start", "status": ruling.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


async def refuse_websocket(ruling: Ruling, scope: Scope, receive: Receive, send: Send) -> None:
    """Before it is accepted: with 429 where the server can, else as the close that servers turn
    into 403."""
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        told = lines_of(rulings_of(scope)[0] or [ruling])
        await send_refusal(ruling, send, "websocket.http.response", told)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "rate limit"})


def retry_s(ruling: Ruling) -> int:
    """In how many seconds a client may come back."""
    verdict: Verdict | None = ruling.verdict
    return 1 if verdict is None else max(1, -(-verdict.retry_after_ms // 1000))
