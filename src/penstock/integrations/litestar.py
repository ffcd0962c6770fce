"""Litestar: a plugin, with limits for an app, and for handlers by their `opt`.

All limits of a request are one decision, made in a middleware, after the route was found and before
its guards and dependencies. The headers are put on by the app's `before_send`, so they are on
streams and exceptions too. For requests without a route, put
`penstock.integrations.asgi.RateLimitMiddleware` around the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core._errors import require_module
from ._asgi import (
    ScopeReader,
    answered,
    is_last,
    note,
    refuse_websocket,
    rulings_of,
    send_refusal,
    settle_all,
    settle_without_slots,
    stamp,
)
from ._deciding import RuleSet
from ._rules import Rule, WebOptions, add_rules, app_limits, as_rules
from ._ruling import Answered, Ruling, agive_back

require_module(__name__, "litestar")

from litestar.connection import Request, WebSocket  # noqa: E402
from litestar.plugins import InitPlugin  # noqa: E402

if TYPE_CHECKING:
    from litestar.config.app import AppConfig
    from typing_extensions import Unpack

__all__ = ["RateLimitPlugin"]

_ANSWERED = "penstock.answered"


class _LitestarReader(ScopeReader):
    def route(self, request: Any) -> str:
        scope = request.scope
        return str(scope.get("path_template") or scope["path"])


class RateLimitPlugin(InitPlugin):
    """Limits an app: `Litestar(handlers, plugins=[RateLimitPlugin("100/minute")])`.

    `limits` are rates such as `"100/minute"`, strategies or `Rule`s, for the whole app. A handler,
    controller or router adds its own as `opt={"rate_limit": "5/minute"}`, or a list of them; those
    of a controller or a router are for its path as a whole. The
    options are those of `WebOptions`; `on_denied` is a function of request and verdict, sync or
    async, that returns an ASGI app, such as an `ASGIResponse`. The `Verdict` is
    `request.state.rate_limit`. The store is closed when the app shuts down.
    """

    def __init__(self, *limits: Any, **options: Unpack[WebOptions]) -> None:
        self._rules = as_rules(limits)
        self._limits = app_limits(_LitestarReader(), options)
        self._rule_sets: dict[Any, RuleSet | None] = {}

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Called by Litestar."""
        app_config.middleware.insert(0, self._middleware)
        app_config.before_send.append(_stamp)
        app_config.on_startup.append(self._prepare)
        app_config.on_shutdown.append(self._limits.aclose)
        return app_config

    def _prepare(self, app: Any) -> None:
        """Report mistakes in an `opt` when the server starts."""
        for route in app.routes:
            for handler in getattr(route, "route_handlers", None) or [route.route_handler]:
                self._rules_for(handler)

    def _middleware(self, app: Any) -> Any:
        async def limited(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] in ("http", "websocket"):
                await self._serve(app, scope, receive, send)
            else:
                await app(scope, receive, send)

        return limited

    async def _serve(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        rules = self._rules_for(scope["route_handler"])
        is_http = scope["type"] == "http"
        request: Any = (Request if is_http else WebSocket)(scope, receive, send)
        ruling = None if rules is None else await rules.adecide(request)
        if ruling is None:
            await app(scope, receive, send)
            return
        rulings, _ = rulings_of(scope)
        note(scope, ruling)
        if not ruling.allowed:
            await agive_back(rulings)
            await self._refuse(ruling, request, receive, send)
            return

        def send_copy(message: Any) -> Any:
            # A copy: Litestar's cache keeps the messages that it has sent.
            return send({**message})

        told: Any = None
        try:
            await app(scope, receive, send_copy)
            told = scope.get(_ANSWERED)
        except Exception as error:
            told = scope.get(_ANSWERED) or Answered(getattr(error, "status_code", 500), {})
            raise
        finally:
            await settle_all(rulings, told)

    def _rules_for(self, handler: Any) -> RuleSet | None:
        if handler not in self._rule_sets:
            named = dict(self._rules)
            for after, given in _declared(handler):
                several = given if isinstance(given, (list, tuple)) else [given]
                rules = [each if isinstance(each, Rule) else Rule(each) for each in several]
                add_rules(named, rules, after)
            self._rule_sets[handler] = RuleSet(self._limits, named) if named else None
        return self._rule_sets[handler]

    async def _refuse(self, ruling: Ruling, request: Any, receive: Any, send: Any) -> None:
        if request.scope["type"] == "websocket":
            await refuse_websocket(ruling, request.scope, receive, send)
            return
        handler, response = self._limits.on_denied, None
        if handler is not None:
            response = handler(request, ruling.verdict)
            if hasattr(response, "__await__"):
                response = await response
        if response is None:
            await send_refusal(ruling, send)
        else:
            await response(request.scope, receive, send)


def _declared(handler: Any) -> Iterator[tuple[str, Any]]:
    """The limits of a handler and of its controller and routers, the outermost first, with the
    names of these. Litestar itself gives a handler only the `opt` of the nearest one that has
    it."""
    path, last = "", None
    for layer in handler.ownership_layers:
        path += getattr(layer, "path", None) or ""
        given = (layer.opt or {}).get("rate_limit")
        if given is not None and given is not last:
            yield str(handler) if layer is handler else path, given
            last = given


async def _stamp(message: Any, scope: Any) -> None:
    if is_last(message) and _ANSWERED in scope:
        # Before the client knows that the response is complete, and can send the next request.
        await settle_all(rulings_of(scope)[0], scope[_ANSWERED])
    if message["type"] not in ("http.response.start", "websocket.accept"):
        return
    rulings, _ = rulings_of(scope)
    if rulings:
        if "status" in message:
            scope[_ANSWERED] = answered(message["status"], message.get("headers", ()))
            await settle_without_slots(rulings, scope[_ANSWERED])
        stamp(message, rulings)
