"""ASGI: a middleware for Starlette, and for everything else that speaks ASGI.

It is pure ASGI. Requests and responses pass through as they are; the headers of limits are put on
the message that starts a response, so they are on errors, streams and files too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core._validation import reject
from ._asgi import (
    POLICY_VIOLATION,
    ASGIApp,
    Message,
    Receive,
    Scope,
    ScopeReader,
    Send,
    Stamped,
    is_any_open,
    note,
    refuse_websocket,
    retry_in_words,
    rulings_of,
    send_refusal,
    settle_all,
    stamp,
)
from ._deciding import RuleSet
from ._rules import AppLimits, WebOptions, app_limits, as_rules
from ._ruling import Answered, Ruling, agive_back

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ASGIRequest", "RateLimitMiddleware"]


class _Client(NamedTuple):
    host: str
    port: int


class _HeaderView(Mapping[str, str]):
    """The headers of a scope, by name in any case; lines of one name are joined by commas."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> str:
        wanted = name.lower().encode("latin-1", "replace")
        found = [value for key, value in self._raw if key == wanted]
        if not found:
            raise KeyError(name)
        return b",".join(found).decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key.decode("latin-1") for key, _ in self._raw))

    def __len__(self) -> int:
        return len(list(iter(self)))


class ASGIRequest:
    """The argument of functions for keys, costs and exemptions: a view of the `scope`."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        self.scope: Scope = scope

    @property
    def method(self) -> str:
        """`GET` and the like; a WebSocket begins as a GET."""
        method: str = self.scope.get("method", "GET")
        return method

    @property
    def path(self) -> str:
        """The path of the request, including that of the mount."""
        path: str = self.scope["path"]
        return path

    @property
    def headers(self) -> Mapping[str, str]:
        """By name, in any case."""
        return _HeaderView(self.scope["headers"])

    @property
    def client(self) -> Any:
        """The peer's `host` and `port`, or None."""
        return _Client(*self.scope["client"]) if self.scope.get("client") else None

    @property
    def state(self) -> MutableMapping[str, Any]:
        """The state that other middleware has set for this request."""
        state: MutableMapping[str, Any] = self.scope.setdefault("state", {})
        return state

    @property
    def user(self) -> Any:
        """The user of an authentication middleware; None without one."""
        return self.scope.get("user")


class RateLimitMiddleware:
    """Limits everything that an ASGI app serves.

    `limits` are rates such as `"100/minute"`, strategies, or `Rule`s, which can be restricted to
    methods and paths; they count for the whole app and are one decision. `messages` are limits for
    the messages that a client sends over an open WebSocket, by default by the key of the client;
    one message too many closes the connection. The options are those of `WebOptions`; `on_denied`
    is an async function of request and verdict that returns an ASGI app.

    The `Verdict` is `request.state.rate_limit` to the view. Around a whole app, as in
    `app = RateLimitMiddleware(app, "100/minute")`, it puts its headers on unhandled errors too:
    frameworks answer those outside of the middleware that is added to an app.

        app.add_middleware(RateLimitMiddleware, "100/minute", store="redis://localhost:6379")
    """

    request_class: Callable[[Any], Any] = ASGIRequest
    """Makes the request for functions from a scope."""

    def __init__(
        self,
        app: ASGIApp,
        *limits: Any,
        messages: Any = (),
        **options: Unpack[WebOptions],
    ) -> None:
        self.app: ASGIApp = app
        self._has_routes = hasattr(app, "routes")
        self.limits: AppLimits = app_limits(ScopeReader(), options)
        self._rules = self._rule_set(limits, "app")
        self._messages = self._rule_set(
            messages if isinstance(messages, (list, tuple)) else [messages], "messages"
        )
        if self._messages is not None and self._messages.holds:
            reject(
                "a message is over once it was received: it can hold no slots, and has no answer"
            )

    def _rule_set(self, limits: Iterable[Any], name: str) -> RuleSet | None:
        rules = as_rules(limits, name)
        return RuleSet(self.limits, rules) if rules else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        kind = scope["type"]
        if self._has_routes and "app" not in scope:
            scope["app"] = self.app  # for the templates of its routes
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self.app(scope, receive, self._closing(send) if kind == "lifespan" else send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        rulings, outermost = rulings_of(scope)
        ruling = None if self._rules is None else await self._decide(self._rules, scope)
        if ruling is not None and not ruling.allowed:
            await agive_back(rulings)
            await self._refuse(
                ruling, scope, receive, Stamped(send, rulings) if outermost else send
            )
        elif not outermost:
            await self.app(scope, receive, send)
        else:
            # Run the app, and settle what was charged when its response is known.
            stamped = Stamped(send, rulings)
            try:
                await self.app(scope, receive, stamped)
            except Exception:
                await settle_all(rulings, stamped.answered or Answered(500, {}))
                raise
            finally:
                if is_any_open(rulings):
                    await settle_all(rulings, stamped.answered)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        rulings, outermost = rulings_of(scope)
        ruling = None if self._rules is None else await self._decide(self._rules, scope)
        if ruling is not None and not ruling.allowed:
            await agive_back(rulings)
            await refuse_websocket(ruling, scope, receive, send)
            return
        told = rulings if outermost else []
        watched = _Watched(self, self._messages, scope, receive, send, told)
        try:
            await self.app(scope, watched.receive, watched.send)
        finally:
            await settle_all(rulings, None)

    async def _decide(self, rules: RuleSet, scope: Scope) -> Ruling | None:
        request = self.request_class(scope)
        ruling = rules.decide(request) if rules.answers_at_once else await rules.adecide(request)
        if ruling is not None:
            note(scope, ruling)
        return ruling

    async def _refuse(self, ruling: Ruling, scope: Scope, receive: Receive, send: Send) -> None:
        handler, response = self.limits.on_denied, None
        if handler is not None:
            response = handler(self.request_class(scope), ruling.verdict)
            if hasattr(response, "__await__"):
                response = await response
        if response is None:
            await send_refusal(ruling, send)
        else:
            await response(scope, receive, send)

    def _closing(self, send: Send) -> Send:
        """A `send` that closes the store once the app has shut down."""

        async def sent(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self.limits.aclose()
            await send(message)

        return sent


# A WebSocket is accepted, or refused by a response.
_BEGINNINGS = ("websocket.accept", "websocket.http.response.start")


class _Watched:
    """`receive` and `send` of a WebSocket: adds headers when it is accepted, limits messages."""

    def __init__(
        self,
        middleware: RateLimitMiddleware,
        rules: RuleSet | None,
        scope: Scope,
        receive: Receive,
        send: Send,
        told: list[Ruling],
    ) -> None:
        self._middleware = middleware
        self._rules = rules
        self._scope = scope
        self._receive = receive
        self._send = send
        self._told = told
        self._closed = False

    async def send(self, message: Message) -> None:
        if self._closed:
            return
        if message["type"] in _BEGINNINGS and self._told:
            stamp(message, self._told)
        await self._send(message)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "websocket.receive" or self._rules is None:
            return message
        ruling = await self._rules.adecide(self._middleware.request_class(self._scope))
        if ruling is None or ruling.allowed:
            return message
        self._closed = True
        reason = f"rate limit exceeded, try again in {retry_in_words(ruling)}"
        await self._send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION, "reason": reason}
