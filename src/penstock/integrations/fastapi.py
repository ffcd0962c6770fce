"""FastAPI: limits as dependencies of an app, a router or a route.

All limits of a route are one decision. The first of its dependencies to run finds the others in the
route's tree of dependencies and decides all of them; the others find the result. A limit counts for
the object that declares it: that of an app for all of its routes together, that of a route for this
route.

Calling a dependency costs FastAPI more time than the limit itself. So if limits are the first
dependencies of a route, a `_LimitedRoute` replaces the route's app when the server starts: it
decides before FastAPI reads the body and resolves dependencies, and limits whose value is not used
are no longer called. Routes that are added later, such as those of mounted apps, are replaced with
their first request. If another dependency comes first, nothing is replaced.
"""

# Annotations are not postponed: FastAPI reads those of a dependency, and of an object with
# `__call__` older versions cannot resolve a text.

from collections.abc import Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ..core._errors import require_module
from ..core._validation import reject, shown
from ..core._verdict import Verdict
from ._asgi import ScopeReader, note, refuse_websocket, rulings_of
from ._deciding import RuleSet
from ._rules import Rule, WebOptions, slug
from ._ruling import PROBLEM_JSON, Ruling, agive_back
from ._who import discard
from .asgi import ASGIRequest, RateLimitMiddleware

require_module(__name__, "fastapi")

from fastapi import FastAPI, HTTPException, Request, Response, routing  # noqa: E402
from fastapi.requests import HTTPConnection  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["RateLimit", "TooManyRequests", "install"]

_INSTALLED = "penstock.fastapi"
_DECIDED = "penstock.decided"

_DOCUMENTED: dict[str, Any] = {
    "description": "Too many requests",
    "headers": {
        "Retry-After": {
            "description": "Seconds after which to try again.",
            "schema": {"type": "integer"},
        },
        "RateLimit": {
            "description": "What is left of each limit, and when there is more.",
            "schema": {"type": "string"},
        },
        "RateLimit-Policy": {
            "description": "What each limit grants.",
            "schema": {"type": "string"},
        },
    },
    "content": {
        PROBLEM_JSON: {
            "schema": {
                "type": "object",
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "code": {"type": "string"},
                    "violated-policies": {"type": "array", "items": {"type": "string"}},
                },
            }
        }
    },
}


class TooManyRequests(HTTPException):
    """Raised by a dependency that denies. `verdict` says why; None while the store is away."""

    def __init__(self, ruling: Ruling) -> None:
        super().__init__(ruling.status, headers=ruling.headers())
        self.verdict: Verdict | None = ruling.verdict
        self._ruling = ruling


class RateLimit(Rule):
    """A limit as a dependency: see `Rule` for what it takes. Its value is the `Verdict`.

        app = FastAPI(dependencies=[Depends(RateLimit("100/minute"))])
        install(app)

    One object is one limit, wherever it is given: routes that are given the same one share it.
    """

    async def __call__(self, connection: HTTPConnection) -> Verdict | None:
        """Decide all limits of the route that serves this request, once."""
        scope = connection.scope
        installed: _Installed | None = scope.get(_INSTALLED)
        if installed is None:
            reject(
                "RateLimit needs the app's help to put headers on its answers: call "
                "penstock.integrations.fastapi.install(app) once, after app = FastAPI(...)"
            )
        decided = [told for rules, told in scope.get(_DECIDED, ()) if self in rules.rules.values()]
        if decided:
            (ruling,) = decided
        else:
            rules = installed.rules_for(scope, self)
            ruling = await rules.adecide(connection)
            if _is_denied(scope, rules, ruling):
                await _deny(scope, ruling)
        return None if ruling is None else ruling.shown


def _is_denied(scope: Any, rules: RuleSet, ruling: Ruling | None) -> bool:
    """Record the ruling on a request, and return whether it is denied."""
    decided = rules, ruling
    earlier = scope.get(_DECIDED)
    scope[_DECIDED] = (decided,) if earlier is None else (*earlier, decided)
    if ruling is None:
        return False
    note(scope, ruling)
    return not ruling.allowed


async def _deny(scope: Any, ruling: Any) -> NoReturn:
    await agive_back(rulings_of(scope)[0])
    raise TooManyRequests(ruling)


def install(app: FastAPI, **options: "Unpack[WebOptions]") -> None:
    """Prepare an app for `RateLimit`: headers on all of its answers, 429 as problem+json, and in
    its OpenAPI. The options are those of `WebOptions`; `on_denied` is a function of request and
    verdict, sync or async, that returns a response."""
    if not isinstance(app, FastAPI):
        reject(f"install takes a FastAPI app, not {shown(app)}")
    if app.middleware_stack is not None:
        reject("install must be called before the app serves its first request")
    build = app.build_middleware_stack
    if isinstance(getattr(build, "__self__", None), _Installed):
        reject("install was called for this app already; call it once, with all options")
    # Around all middleware of the app, including the one that answers unhandled errors.
    installed = _Installed(app, build, **options)
    app.build_middleware_stack = installed.built  # type: ignore[method-assign]
    _prepare(app, installed)


def _prepare(app: FastAPI, installed: "_Installed") -> None:
    """Add the handler of refusals and their documentation to an app. Its own handler stays."""
    refuse: Any = installed.refuse
    app.exception_handlers.setdefault(TooManyRequests, refuse)
    document = app.openapi

    def openapi() -> dict[str, Any]:
        schema = document()
        for route in _routes_of(app):
            if _limits_of(route) and getattr(route, "include_in_schema", False):
                _document(schema, route)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


class _FastAPIReader(ScopeReader):
    def route(self, request: Any) -> str:
        scope = request.scope
        template = getattr(_route_of(scope), "path_format", None)
        is_mounted = "app_root_path" in scope
        return super().route(request) if template is None or is_mounted else str(template)


class _Installed(RateLimitMiddleware):
    """Adds the headers of decisions to responses, and has the limits of each route."""

    def __init__(self, app: FastAPI, build: Any, **options: "Unpack[WebOptions]") -> None:
        super().__init__(_nothing, **options)
        self._fastapi = app
        self.limits.reader = _FastAPIReader()
        self.limits.resolve = _put_off
        self._build = build
        self._names: dict[Rule, str] = {}
        self._rule_sets: dict[tuple[RateLimit, ...], RuleSet] = {}
        self._found: dict[int, tuple[Any, tuple[RateLimit, ...]]] = {}

    def built(self) -> Any:
        """Replaces the app's own middleware stack."""
        self.app = self._build()
        for route in _routes_of(self._fastapi):
            limits = _limits_of(route)
            if limits:
                rules = self._rules_of(self._fastapi, limits)
                # Where routers are included as they are, this only stands for the route.
                _LimitedRoute.take(getattr(route, "_effective_route", route), self, rules)
        for mounted in _mounted(self._fastapi.routes):
            if TooManyRequests not in mounted.exception_handlers:
                _prepare(mounted, self)
        return self

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        scope[_INSTALLED] = self
        if scope["type"] == "http":
            return self._http(scope, receive, send)
        return super().__call__(scope, receive, send)

    def rules_for(self, scope: Any, asking: RateLimit) -> RuleSet:
        """The limits of the route that serves `scope`, of which `asking` is one."""
        overrides = _overrides(scope)
        route = _route_of(scope)
        found = self._limits_at(route)
        if overrides:
            found = tuple([rule for rule in found if rule not in overrides])
        wanted = found if asking in found else (asking,)
        rules = self._rules_of(scope["app"], wanted)
        if not overrides and wanted is found:
            _LimitedRoute.take(route, self, rules)
        return rules

    def _rules_of(self, app: Any, wanted: tuple[RateLimit, ...]) -> RuleSet:
        rules = self._rule_sets.get(wanted)
        if rules is None:
            if not self._names.keys() >= set(wanted):
                self._name_all(app, wanted)
            named: dict[str, Rule] = {}
            for rule in wanted:
                name = self._names[rule]
                if named.setdefault(name, rule) is not rule:
                    reject(
                        f"two limits of one route are called {name!r}; give each a name of its "
                        "own, or the route the same object"
                    )
            rules = self._rule_sets[wanted] = RuleSet(self.limits, named)
        return rules

    def _limits_at(self, route: Any) -> tuple[RateLimit, ...]:
        """The limits in its tree, walked once. The route is kept, so that its id is not reused."""
        known = self._found.get(id(route))
        if known is None:
            known = self._found[id(route)] = route, _limits_of(route)
        return known[1]

    def _name_all(self, app: Any, wanted: Iterable[RateLimit]) -> None:
        """Name the limits of an app after the first route of each; limits of all routes are named
        after the app. The order of routes is that of the program, so the names are the same in
        every process."""
        everywhere = [each.dependency for each in app.router.dependencies]
        for route in _routes_of(app):
            for rule in _limits_of(route):
                self._name(rule, "app" if rule in everywhere else _route_name(route))
        for rule in wanted:
            self._name(rule, "app")

    def _name(self, rule: Rule, after: str) -> None:
        if rule in self._names:
            return
        name, taken, place = rule.name or slug(after), set(self._names.values()), 1
        if rule.name is None:
            while name in taken:
                place += 1
                name = f"{slug(after)}-{place}"
        self._names[rule] = name

    async def refuse(self, connection: HTTPConnection, error: Any) -> Response | None:
        """Answer a request that was denied: the handler of `TooManyRequests`."""
        ruling: Ruling = error._ruling
        if connection.scope["type"] == "websocket":
            socket: Any = connection
            await refuse_websocket(ruling, socket.scope, socket.receive, socket.send)
            return None
        handler = self.limits.on_denied
        answer: Any = None
        if handler is not None:
            answer = handler(connection, ruling.verdict)
            answer = await answer if hasattr(answer, "__await__") else answer
        if answer is not None:
            response: Response = answer
            return response
        return Response(ruling.problem(), ruling.status, media_type=PROBLEM_JSON)


class _PutOffError(Exception):
    """A function of the app has to be awaited."""


def _put_off(value: Any) -> Any:
    discard(value)
    raise _PutOffError


class _LimitedRoute:
    """Replaces a route's app: decides the limits, then calls the app.

    It puts the app back if the limits have to be dependencies after all: with overrides, in tests,
    and with async functions, since these may read the body, which only the app can share.
    """

    __slots__ = (
        "_all",
        "_app",
        "_at_once",
        "_dependant",
        "_gave_way",
        "_installed",
        "_request",
        "_rules",
        "limits",
    )

    def __init__(self, route: Any, installed: "_Installed", rules: RuleSet) -> None:
        self.limits: tuple[RateLimit, ...] = _limits_of(route)
        self._app = route.app
        self._dependant = route.dependant
        self._all = route.dependant.dependencies
        self._installed = installed
        self._rules = rules
        self._request: Any = Request if rules.calls_functions else ASGIRequest
        self._at_once = rules.answers_at_once
        self._gave_way = False

    @classmethod
    def take(cls, route: Any, installed: "_Installed", rules: RuleSet) -> None:
        """Replace a route's app, if its limits come first and it is a plain route. Once: where the
        app was put back, it stays."""
        first = getattr(route, "dependant", None)
        while first is not None and first.dependencies:
            first = first.dependencies[0]
        app = getattr(route, "app", None)
        is_http = getattr(route, "methods", None) is not None
        if (
            first is not None
            and isinstance(first.call, RateLimit)
            and is_http
            and app is not None
            and not isinstance(app, cls)
        ):
            route.app = limited = cls(route, installed, rules)
            # A new list: the old one may be iterated over at the moment.
            limited._dependant.dependencies = [
                each
                for each in limited._all
                if each.name is not None or not isinstance(each.call, RateLimit)
            ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not self._gave_way:
            if scope.get(_INSTALLED) is not self._installed or _overrides(scope):
                self._give_way()
            elif self._at_once:
                ruling = self._rules.decide(self._request(scope))
                if _is_denied(scope, self._rules, ruling):
                    await _deny(scope, ruling)
            else:
                await self._decide(scope)
        await self._app(scope, receive, send)

    async def _decide(self, scope: Any) -> None:
        rules = self._rules
        try:
            asked = rules.asked(self._request(scope))
        except _PutOffError:
            self._give_way()
            return
        ruling = None if asked is None else await rules.aanswer(asked)
        if _is_denied(scope, rules, ruling):
            await _deny(scope, ruling)

    def _give_way(self) -> None:
        """Put the app back, permanently. Requests that are in here were decided, or will be."""
        self._gave_way = True
        self._dependant.dependencies = self._all


def _overrides(scope: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = getattr(scope["app"], "dependency_overrides", {})
    return found


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Stands for a middleware stack that is not built yet."""


def _route_of(scope: Any) -> Any:
    """The route that serves a scope. If routers are included unchanged, it is the route as seen
    from the app, with the prefix and the dependencies of its routers, not the declared one."""
    return scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")


def _routes_of(app: FastAPI) -> Iterator[Any]:
    contexts = getattr(routing, "iter_route_contexts", None)
    for route in app.routes if contexts is None else contexts(app.routes):
        if getattr(route, "dependant", None) is not None:
            yield route


def _mounted(routes: Iterable[Any]) -> Iterator[FastAPI]:
    """The apps among routes, and those that are mounted in them."""
    for route in routes:
        app = getattr(route, "app", None)
        if isinstance(app, FastAPI):
            yield app
        yield from _mounted(getattr(route, "routes", None) or ())


def _limits_of(route: Any) -> tuple[RateLimit, ...]:
    """The limits in the whole tree of dependencies, outermost first, none twice."""
    app = getattr(route, "app", None)
    if isinstance(app, _LimitedRoute):
        return app.limits
    return tuple(dict.fromkeys(_walk(getattr(route, "dependant", None))))


def _walk(dependant: Any) -> Iterator[RateLimit]:
    for inner in getattr(dependant, "dependencies", ()):
        if isinstance(inner.call, RateLimit):
            yield inner.call
        yield from _walk(inner)


def _route_name(route: Any) -> str:
    """The same in every process: methods are a set, whose order differs between processes."""
    methods = getattr(route, "methods", None) or ["WS"]
    return f"{'-'.join(sorted(methods))}{route.path_format}"


def _document(schema: dict[str, Any], route: Any) -> None:
    operations = schema.get("paths", {}).get(route.path_format, {})
    for method in route.methods:
        if method.lower() in operations:
            operations[method.lower()].setdefault("responses", {}).setdefault("429", _DOCUMENTED)
