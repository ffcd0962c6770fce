"""Flask: an extension, with limits for an app, blueprints and views.

All limits of a request are one decision, made before the view: those of the app, of its blueprint
and of the view, in this order. A decorator only records its limits; the extension finds them by the
view that a request is routed to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from ..core._errors import require_module
from ..core._validation import reject, shown
from ._asgi import retry_in_words
from ._deciding import RuleSet
from ._rules import (
    AppLimits,
    Rule,
    WebOptions,
    add_rules,
    app_limits,
    as_rules,
    require_sync_functions,
)
from ._ruling import PROBLEM_JSON, Ruling, give_back, put_on
from ._who import NO_ROUTE

require_module(__name__, "flask")

from flask import Blueprint, Flask, Response, current_app, g, request  # noqa: E402
from werkzeug.exceptions import (  # noqa: E402
    HTTPException,
    ServiceUnavailable,
    TooManyRequests,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["RateLimits"]

_KEY = "penstock"
_ASKED = "_penstock"

_View = TypeVar("_View", bound=Callable[..., Any])


class _WerkzeugReader:
    """Reads the request of werkzeug."""

    def peer(self, request: Any) -> str | None:
        peer: str | None = request.environ.get("REMOTE_ADDR")
        return peer

    def header(self, request: Any, name: str) -> str | None:
        value: str | None = request.headers.get(name)
        return value

    def method(self, request: Any) -> str:
        return str(request.method)

    def path(self, request: Any) -> str:
        return str(request.path)

    def route(self, request: Any) -> str:
        rule = request.url_rule
        return NO_ROUTE if rule is None else str(rule.rule)


class RateLimits:
    """The extension: `RateLimits(app, "100/minute")`, or without an app, and `init_app` later.

    `limits` are rates such as `"100/minute"`, strategies or `Rule`s; they count for the whole app.
    The options are those of `WebOptions`; `on_denied` is a function of request and verdict, sync or
    async, that returns what a view may return. Without it, an error handler of the app for 429 is
    used. The `Verdict` is `g.rate_limit`.
    """

    awaits: bool = False
    """Whether functions for keys and costs may be async."""

    def __init__(
        self, app: Flask | None = None, *limits: Any, **options: Unpack[WebOptions]
    ) -> None:
        if app is not None and not hasattr(app, "before_request"):
            limits, app = (app, *limits), None
        self._limits = limits
        self._options = options
        # Some libraries decorate the methods of a class again for each request.
        self._views: WeakKeyDictionary[Any, list[Rule]] = WeakKeyDictionary()
        self._blueprints: dict[Any, list[Rule]] = {}
        self._exempt: set[Any] = set()
        rules = as_rules(limits)
        # Without a store yet, to report mistakes where they are made.
        shared = app_limits(_WerkzeugReader(), {**options, "store": None})
        if not self.awaits:
            require_sync_functions(shared, *rules.values())
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limit this app; one extension may serve several apps, each with its own counts."""
        if _KEY in app.extensions:
            reject("this app has an extension of Penstock already; give its limits to that one")
        limits = app_limits(_WerkzeugReader(), self._options)
        app.extensions[_KEY] = installed = _ViewLimits(self, limits, app)
        app.before_request(installed.before)
        # The first to be registered is the last to see a response.
        app.after_request_funcs.setdefault(None, []).insert(0, _after)
        app.teardown_request(_teardown)

    def limit(self, *limits: Any, **options: Any) -> Callable[[_View], _View]:
        """A decorator for views, and for classes of views, below `@app.route`. It takes what a
        `Rule` takes, such as `methods=["POST"]`; several limits, in one decorator or in more, are
        one decision."""
        rules = self._rules(limits, options)

        def decorate(view: _View) -> _View:
            if not callable(view):
                reject(f"limit decorates a view, not {shown(view)}")
            if isinstance(view, type):
                self._views.setdefault(view, [])[:0] = rules
                return view
            inner = [rule for each in _unwrapped(view) for rule in self._views.get(each, ())]
            limited: Any = self._limited(view, [*rules, *inner])
            self._views[limited] = rules
            return limited  # type: ignore[no-any-return]

        return decorate

    def shared_limit(self, name: str, *limits: Any, **options: Any) -> Callable[[_View], _View]:
        """As `limit`, for views that count together: those under one `name`. Further limits are
        called `name-2` and so on."""
        rules = []
        for place, limit in enumerate(limits, 1):
            if isinstance(limit, Rule):
                reject(f"a shared limit is named here: give its rate and options, not {limit!r}")
            rules.append(Rule(limit, **{**options, "name": _numbered(name, place)}))
        return self.limit(*rules)

    def limit_blueprint(self, blueprint: Blueprint, *limits: Any, **options: Any) -> None:
        """Limit the views of a blueprint, and those of blueprints in it, which count together."""
        if not isinstance(getattr(blueprint, "name", None), str):
            reject(f"limit_blueprint takes a blueprint, not {shown(blueprint)}")
        rules = self._rules(limits, options)
        self._blueprints.setdefault(blueprint, []).extend(rules)

    def exempt(self, view: _View) -> _View:
        """A decorator for views, or a call for blueprints, that are not limited at all."""
        self._exempt.add(view)
        return view

    @property
    def verdict(self) -> Any:
        """The verdict of the current request; None if it is not limited."""
        return g.get("rate_limit")

    @staticmethod
    def _limited(view: Callable[..., Any], rules: list[Rule]) -> Callable[..., Any]:
        return _limited(view, rules)

    def _rules(self, limits: Iterable[Any], options: dict[str, Any]) -> list[Rule]:
        made = [limit if isinstance(limit, Rule) else Rule(limit, **options) for limit in limits]
        if not made:
            reject("a limit must be given, such as '100/minute'")
        if not self.awaits:
            require_sync_functions(*made)
        return made


class _Inquiry:
    """The rules that were decided for one request, and their rulings."""

    __slots__ = ("rule_sets", "rulings")

    def __init__(self) -> None:
        self.rule_sets: list[RuleSet] = []
        self.rulings: list[Ruling] = []

    def missing(self, rules: list[Rule]) -> list[Rule]:
        """The rules that were not decided yet."""
        known = [rule for each in self.rule_sets for rule in each.rules.values()]
        return [rule for rule in rules if rule not in known]


class _ViewLimits:
    """The limits of one app, by endpoint."""

    def __init__(self, declared: RateLimits, limits: AppLimits, app: Any) -> None:
        self.declared = declared
        self.limits = limits
        self._views: Mapping[str, Any] = app.view_functions
        self._blueprints: Mapping[str, Any] = app.blueprints
        self._lock = threading.Lock()
        self._rule_sets: dict[str | None, RuleSet | None] = {}
        self._hidden: dict[tuple[str, tuple[Rule, ...]], RuleSet] = {}

    def before(self) -> Any:
        """Decide about the current request: what to answer instead of the view, or None."""
        # The objects behind the proxies: each access through a proxy takes as long as a check.
        asked: Any = request._get_current_object()  # type: ignore[attr-defined]
        return _decide(self, self.rules_for(asked.endpoint), asked)

    def rules_for(self, endpoint: str | None) -> RuleSet | None:
        """The rules of a request that was routed to this endpoint, or to none."""
        try:
            return self._rule_sets[endpoint]
        except KeyError:
            pass
        with self._lock:
            if endpoint not in self._rule_sets:
                rules = self._find(endpoint)
                self._rule_sets[endpoint] = RuleSet(self.limits, rules) if rules else None
            return self._rule_sets[endpoint]

    def _find(self, endpoint: str | None) -> dict[str, Rule]:
        declared = self.declared
        rules = as_rules(declared._limits)
        if endpoint is None:
            return rules
        views = list(_unwrapped(self._views.get(endpoint)))
        parts = endpoint.split(".")[:-1]
        around = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
        blueprints = [self._blueprints.get(name) for name in around]
        if declared._exempt & {*views, *blueprints}:
            return {}
        for blueprint in blueprints:
            if blueprint in declared._blueprints:
                add_rules(rules, declared._blueprints[blueprint], self._name(blueprint))
        for view in views:
            add_rules(rules, declared._views.get(view, ()), endpoint)
        return rules

    def _name(self, blueprint: Any) -> str:
        """Its name where it was registered first; it may be registered several times, and
        nested."""
        return next(name for name, each in self._blueprints.items() if each is blueprint)

    def hidden(self, endpoint: str, view: Any, rules: list[Rule]) -> RuleSet:
        """The rules of a view that were not found by its endpoint."""
        wanted = endpoint, tuple(rules)
        with self._lock:
            if wanted not in self._hidden:
                named: dict[str, Rule] = {}
                add_rules(named, rules, self._hidden_name(endpoint, view))
                self._hidden[wanted] = RuleSet(self.limits, named)
            return self._hidden[wanted]

    def _hidden_name(self, endpoint: str, view: Any) -> str:
        """Its endpoint; methods of a class of views share one, so their own names are added."""
        name = getattr(view, "__name__", "")
        served = _unwrapped(self._views.get(endpoint))
        is_method = any(isinstance(each, type) and hasattr(each, name) for each in served)
        return f"{endpoint}.{name}" if is_method else endpoint


def _limited(view: Callable[..., Any], rules: list[Rule]) -> Callable[..., Any]:
    """The view with its limits and those of decorators below. The extension decides them together
    with those of the app, if it finds them; if a decorator above hides them, they are decided
    here."""

    @wraps(view)
    def limited(*args: Any, **named: Any) -> Any:
        missing = _asked_of(g).missing(rules)
        if missing:
            asked: Any = request._get_current_object()  # type: ignore[attr-defined]
            limits = _limits()
            refusal = _decide(limits, limits.hidden(str(asked.endpoint), view, missing), asked)
            if refusal is not None:
                return refusal
        return current_app.ensure_sync(view)(*args, **named)

    return limited


def _numbered(name: str, place: int) -> str:
    return name if place == 1 else f"{name}-{place}"


def _unwrapped(view: Any) -> Iterator[Any]:
    """A view, the functions that it wraps, and the class that it is made from."""
    while view is not None:
        yield view
        if (made_of := getattr(view, "view_class", None)) is not None:
            yield made_of
        view = getattr(view, "__wrapped__", None)


def _limits() -> _ViewLimits:
    found: _ViewLimits | None = current_app.extensions.get(_KEY)
    if found is None:
        reject("this app's views are limited, but the app is not: call limits.init_app(app)")
    return found


def _asked_of(context: Any) -> _Inquiry:
    """The rules that were decided for the request of this `g`."""
    found: _Inquiry | None = context.get(_ASKED)
    if found is None:
        found = _Inquiry()
        setattr(context, _ASKED, found)
    return found


def _decide(limits: _ViewLimits, rules: RuleSet | None, asked: Any) -> Any:
    """Decide, and return what to answer instead of the view, or None."""
    if rules is None:
        return None
    context: Any = g._get_current_object()
    known = _asked_of(context)
    known.rule_sets.append(rules)
    ruling = rules.decide(asked)
    if ruling is None:
        return None
    context.rate_limit = ruling.shown
    known.rulings.append(ruling)
    if ruling.allowed:
        return None
    give_back(known.rulings)
    handler = limits.limits.on_denied
    answer: Any = None
    if handler is not None:
        answer = current_app.ensure_sync(handler)(asked, ruling.verdict)
    if answer is not None:
        return answer
    error = _as_error(ruling)
    answer = current_app.handle_http_exception(error)
    if answer is not error:
        return answer
    return Response(ruling.problem(), ruling.status, content_type=PROBLEM_JSON)


def _as_error(ruling: Ruling) -> HTTPException:
    """A refusal as an exception, for the app's error handlers."""
    kind = ServiceUnavailable if ruling.verdict is None else TooManyRequests
    return kind(f"Try again in {retry_in_words(ruling)}.")


def _after(response: Response) -> Response:
    known: _Inquiry | None = g.get(_ASKED)
    rulings = () if known is None else known.rulings
    for ruling in rulings:
        if ruling.holds_slots and _is_stream(response):
            # Slots are held until the stream is read to its end, or closed. Not every server closes
            # the stream of a client that disconnects.
            settle = partial(ruling.settle, response)
            response.response = _followed(response.response, settle)
            response.call_on_close(settle)
        elif ruling.held:
            ruling.settle(response)
    put_on(response, rulings)
    return response


def _is_stream(response: Response) -> bool:
    """Whether the response ends later. Flask's own errors are streams only by type: a test that
    reads just their status does not read them to their end."""
    is_error = response.status_code >= 400 and response.content_length is not None
    return response.is_streamed and not is_error


def _followed(chunks: Any, settle: Callable[[], None]) -> Iterator[Any]:
    try:
        yield from chunks
    finally:
        settle()
        getattr(chunks, "close", lambda: None)()


def _teardown(error: BaseException | None) -> None:
    """Settle a request without a response as a 500."""
    known: _Inquiry | None = g.get(_ASKED) if error is not None else None
    for ruling in () if known is None else known.rulings:
        ruling.settle(Response(status=500))
