"""aiohttp's server: limits for an app, and for handlers by a decorator.

All limits of a request are one decision, made by a middleware before the handler. The headers are
put on when a response is about to be sent, so they are on streams, exceptions and WebSockets too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from ..core._errors import require_module
from ..core._validation import reject, shown
from ._asgi import settle_all, settle_without_slots
from ._deciding import RuleSet
from ._rules import AppLimits, Rule, WebOptions, add_rules, app_limits, as_rules, path_of
from ._ruling import PROBLEM_JSON, Ruling, agive_back, headers_of
from ._who import NO_ROUTE

require_module(__name__, "aiohttp")

from aiohttp import web  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["RATE_LIMIT", "rate_limited", "setup"]


def _request_key(name: str, kind: type) -> Any:
    """Older versions of aiohttp have no type for keys, and take strings."""
    made = getattr(web, "RequestKey", None)
    return name if made is None else made(name, kind)


RATE_LIMIT: Any = _request_key("rate_limit", object)
"""The key of a request under which a handler finds its `Verdict`: `request[RATE_LIMIT]`."""

_RULES = "penstock_rules"
_RULINGS: Any = _request_key("penstock_rulings", list)
_DECIDED: Any = _request_key("penstock_decided", set)
_INSTALLED: Any = _request_key("penstock_installed", object)

_Handler = TypeVar("_Handler")


class _AiohttpReader:
    """Reads the request of aiohttp."""

    def peer(self, request: Any) -> str | None:
        peer: str | None = request.remote
        return peer

    def header(self, request: Any, name: str) -> str | None:
        found = request.headers.getall(name, ())
        return ",".join(found) if found else None

    def method(self, request: Any) -> str:
        return str(request.method)

    def path(self, request: Any) -> str:
        return str(request.path)

    def route(self, request: Any) -> str:
        resource = request.match_info.route.resource
        return NO_ROUTE if resource is None else str(resource.canonical)


def setup(app: web.Application, *limits: Any, **options: Unpack[WebOptions]) -> None:
    """Limit an app, and those that are added to it.

    `limits` are rates such as `"100/minute"`, strategies or `Rule`s, for the whole app. The options
    are those of `WebOptions`; `on_denied` is a function of request and verdict, sync or async, that
    returns a response. The `Verdict` is `request[RATE_LIMIT]`. The store is closed with the app.
    """
    if not isinstance(app, web.Application):
        reject(f"setup takes an aiohttp.web.Application, not {shown(app)}")
    installed = _AiohttpLimits(as_rules(limits), app_limits(_AiohttpReader(), options))
    # The outermost, so that requests that other middleware refuses count as well.
    app.middlewares.insert(0, installed.middleware)
    app.on_response_prepare.append(_stamp)
    app.on_cleanup.append(installed.close)


def rate_limited(*limits: Any, **options: Any) -> Callable[[_Handler], _Handler]:
    """A decorator for handlers, classes of views and methods of those, in an app that `setup` has
    limited. It takes what a `Rule` takes; several limits, and those of the app, are one
    decision."""
    rules = [limit if isinstance(limit, Rule) else Rule(limit, **options) for limit in limits]
    if not rules:
        reject("a limit must be given, such as @rate_limited('100/minute')")

    def decorate(handler: _Handler) -> _Handler:
        if not callable(handler):
            reject(f"rate_limited decorates a handler, not {shown(handler)}")
        if inspect.ismethod(handler):
            reject(f"rate_limited goes above the definition of {handler.__qualname__}")
        declared = [*rules, *getattr(handler, _RULES, ())]
        limited: Any = handler if isinstance(handler, type) else _limited(handler, declared)
        setattr(limited, _RULES, declared)
        return limited  # type: ignore[no-any-return]

    return decorate


def _limited(handler: Any, declared: list[Rule]) -> Any:
    """The handler with its limits and those of decorators below. The middleware decides them if it
    finds them; limits of a method, or below a decorator that hides them, are decided here."""

    @wraps(handler)
    async def limited(*args: Any, **named: Any) -> Any:
        # A function gets the request as argument; a method of a class of views has it in `self`.
        request = args[-1] if isinstance(args[-1], web.BaseRequest) else args[0].request
        decided = request.get(_DECIDED)
        if decided is None:
            reject("this app's handlers are limited, but the app is not: call setup(app)")
        missing = tuple([rule for rule in declared if rule not in decided])
        if missing:
            refusal = await request[_INSTALLED].decide(request, missing, path_of(handler), {})
            if refusal is not None:
                return refusal
        return await handler(*args, **named)

    return limited


class _AiohttpLimits:
    """The limits of one app, by handler."""

    def __init__(self, rules: dict[str, Rule], limits: AppLimits) -> None:
        self._rules = rules
        self._limits = limits
        self._rule_sets: dict[Any, RuleSet | None] = {}

    @web.middleware
    async def middleware(self, request: Any, handler: Any) -> Any:
        if _INSTALLED not in request:
            request[_INSTALLED], request[_DECIDED], request[_RULINGS] = self, set(), []
        decided, rulings = request[_DECIDED], request[_RULINGS]
        before = len(rulings)
        served = request.match_info.handler
        # An outer app may have decided the limits of the handler already.
        own = tuple([rule for rule in getattr(served, _RULES, ()) if rule not in decided])
        refusal = await self.decide(request, own, path_of(served) if own else "", self._rules)
        if refusal is not None:
            return refusal
        answered: Any = None
        try:
            answered = await handler(request)
        except web.HTTPException as refused:
            answered = refused
            raise
        except Exception:
            answered = web.Response(status=500)
            raise
        finally:
            await settle_all(rulings[before:], answered)
        return answered

    async def decide(
        self, request: Any, own: tuple[Rule, ...], after: str, others: Mapping[str, Rule]
    ) -> Any:
        """Decide the limits of a handler with others, and return what to answer instead of it, or
        None."""
        rules = self._rule_set(own, after, others)
        request[_DECIDED].update(own)
        ruling = None if rules is None else await rules.adecide(request)
        if ruling is None:
            return None
        earlier = list(request[_RULINGS])
        request[_RULINGS].append(ruling)
        request[RATE_LIMIT] = ruling.shown
        if ruling.allowed:
            return None
        await agive_back(earlier)
        return await self._refusal(request, ruling)

    def _rule_set(
        self, own: tuple[Rule, ...], after: str, others: Mapping[str, Rule]
    ) -> RuleSet | None:
        wanted = after, own, bool(others)
        if wanted not in self._rule_sets:
            named = dict(others)
            add_rules(named, own, after)
            self._rule_sets[wanted] = RuleSet(self._limits, named) if named else None
        return self._rule_sets[wanted]

    async def _refusal(self, request: Any, ruling: Ruling) -> Any:
        handler, answer = self._limits.on_denied, None
        if handler is not None:
            answer = handler(request, ruling.verdict)
            answer = await answer if inspect.isawaitable(answer) else answer
        if answer is not None:
            return answer
        return web.Response(body=ruling.problem(), status=ruling.status, content_type=PROBLEM_JSON)

    async def close(self, app: web.Application) -> None:
        await self._limits.aclose()


async def _stamp(request: Any, response: Any) -> None:
    rulings: list[Ruling] = request.get(_RULINGS, [])
    await settle_without_slots(rulings, response)
    for name, value in headers_of(rulings).items() if rulings else ():
        response.headers.setdefault(name, value)
