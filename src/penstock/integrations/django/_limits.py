"""Limits of a Django project: the settings, and the limits of each request.

A decorator only records its rules on the view. The middleware decides them together with those of
the settings, after Django has found the view and before it is called; authentication has happened
by then. A request without a view is decided afterwards. Without the middleware a decorator decides
by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any

from ...core._errors import require_module
from ...core._validation import reject, shown
from .._asgi import settle_all
from .._deciding import RuleSet
from .._rules import AppLimits, Rule, add_rules, app_limits, as_rules, path_of
from .._ruling import PROBLEM_JSON, Ruling, agive_back, give_back, put_on
from .._who import NO_ROUTE

require_module("penstock.integrations.django", "django")

from asgiref.sync import async_to_sync  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.exceptions import (  # noqa: E402
    BadRequest,
    PermissionDenied,
    SuspiciousOperation,
)
from django.core.signals import setting_changed  # noqa: E402
from django.http import Http404, HttpResponse  # noqa: E402
from django.urls import URLPattern, get_resolver  # noqa: E402
from django.utils.module_loading import import_string  # noqa: E402

__all__ = [
    "RULES",
    "DjangoLimits",
    "DjangoReader",
    "adecide",
    "asettle_failed",
    "decide",
    "declared_rules",
    "is_viewed",
    "limits_of_project",
    "options_of",
    "refusal",
    "rulings_of_request",
    "settle",
    "settle_failed",
    "stamp",
    "view_name",
    "viewed",
    "was_decided",
]

RULES = "penstock_rules"
"""The attribute of a view with the rules of its decorators."""

_VIEWED = "_penstock_viewed"
_RULINGS = "_penstock_rulings"
_DECIDED = "_penstock_decided"
# Settings that may be given as a dotted path.
_IMPORTABLE = ("key", "on_denied", "clock")


class DjangoReader:
    """Reads the request of Django."""

    def peer(self, request: Any) -> str | None:
        peer: str | None = request.META.get("REMOTE_ADDR")
        return peer

    def header(self, request: Any, name: str) -> str | None:
        value: str | None = request.headers.get(name)
        return value

    def method(self, request: Any) -> str:
        return str(request.method)

    def path(self, request: Any) -> str:
        return str(request.path)

    def route(self, request: Any) -> str:
        match = request.resolver_match
        return NO_ROUTE if match is None else f"/{match.route}"


class DjangoLimits:
    """The limits of the settings, with those of views, by view."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        rules, options = options_of(given)
        self.rules: dict[str, Rule] = rules
        self.limits: AppLimits = app_limits(DjangoReader(), options)
        self.limits.resolve = async_to_sync(_awaited)
        self._lock = threading.Lock()
        self._rule_sets: dict[tuple[str, tuple[Rule, ...], bool], RuleSet | None] = {}

    def rules_for(self, view: str, rules: Iterable[Rule], *, alone: bool = False) -> RuleSet | None:
        """The rules of a view, with those of the settings unless they are to be `alone`."""
        wanted = view, tuple(rules), alone
        try:
            return self._rule_sets[wanted]
        except KeyError:
            pass
        with self._lock:
            if wanted not in self._rule_sets:
                named = {} if alone else dict(self.rules)
                add_rules(named, wanted[1], view)
                self._rule_sets[wanted] = RuleSet(self.limits, named) if named else None
            return self._rule_sets[wanted]


def options_of(given: Any) -> tuple[dict[str, Rule], dict[str, Any]]:
    """The rules and the options of the setting `PENSTOCK`."""
    if not isinstance(given, Mapping):
        reject(
            f"the setting PENSTOCK must be a dict such as {{'LIMITS': [...]}}, not {shown(given)}"
        )
    options = {}
    limits: Any = ()
    for name, value in given.items():
        if name == "LIMITS":
            limits = [value] if isinstance(value, (str, Rule)) else value
            continue
        if not isinstance(name, str) or not name.isupper():
            reject(
                f"the names in the setting PENSTOCK are in capitals, such as 'STORE': {shown(name)}"
            )
        option = name.lower()
        by_path = option in _IMPORTABLE and isinstance(value, str)
        options[option] = _imported(name, value) if by_path else value
    return as_rules(limits), options


def _imported(name: str, path: str) -> Any:
    try:
        return import_string(path)
    except ImportError as error:
        reject(f"PENSTOCK[{name!r}] names {path!r}, which cannot be imported: {error}")


async def _awaited(value: Any) -> Any:
    return await value


_lock = threading.Lock()
_project: list[DjangoLimits] = []


def limits_of_project() -> DjangoLimits:
    """The limits of the project: made at first use, and again after the setting has changed."""
    if not _project:
        with _lock:
            if not _project:
                _project.append(DjangoLimits(getattr(settings, "PENSTOCK", {})))
    return _project[0]


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "PENSTOCK":
        with _lock:
            for limits in _project:
                limits.limits.close()
            _project.clear()


setting_changed.connect(_forget)


def view_name(view: Any) -> str:
    """The name of a view, after which its limits are named."""
    made_of = _class_of(view)
    if made_of is None:
        return path_of(view)
    path = path_of(made_of)
    # The classes that Django REST framework makes of functions have the names of these.
    is_renamed = path.rpartition(".")[2] != made_of.__name__
    return f"{made_of.__module__}.{made_of.__name__}" if is_renamed else path


def decide(request: Any, rules: RuleSet | None) -> Any:
    """Decide, and return what to answer instead of the view, or None."""
    if rules is None:
        return None
    ruling = rules.decide(request)
    if _is_allowed(request, rules, ruling):
        return None
    give_back(rulings_of_request(request))
    answer = _answer(request, ruling)
    if isawaitable(answer):
        answer = limits_of_project().limits.resolve(answer)
    return refusal(ruling) if answer is None else answer


async def adecide(request: Any, rules: RuleSet | None) -> Any:
    """The awaitable twin of `decide`."""
    if rules is None:
        return None
    ruling = await rules.adecide(request)
    if _is_allowed(request, rules, ruling):
        return None
    await agive_back(rulings_of_request(request))
    answer = _answer(request, ruling)
    if isawaitable(answer):
        answer = await answer
    return refusal(ruling) if answer is None else answer


def _is_allowed(request: Any, rules: RuleSet, ruling: Ruling | None) -> bool:
    """Record the ruling on a request, and return whether it is allowed."""
    was_decided(request).update(rules.rules.values())
    if ruling is None:
        return True
    _plain(request).rate_limit = ruling.shown
    rulings_of_request(request).append(ruling)
    return ruling.allowed


def _answer(request: Any, ruling: Any) -> Any:
    """The response of `on_denied` to a denied request, or an awaitable of it; None for the standard
    refusal."""
    handler = limits_of_project().limits.on_denied
    return None if handler is None else handler(request, ruling.verdict)


def refusal(ruling: Any) -> Any:
    """The standard response to a denied request."""
    return HttpResponse(ruling.problem(), status=ruling.status, content_type=PROBLEM_JSON)


def _plain(request: Any) -> Any:
    """Django's own request, which that of Django REST framework wraps: what is recorded on it is
    found by the middleware, too."""
    return getattr(request, "_request", request)


def viewed(request: Any) -> None:
    """Record that the middleware has decided a request for its view: later decisions are put on the
    response, and settled, by the middleware, too."""
    setattr(request, _VIEWED, True)


def is_viewed(request: Any) -> bool:
    """Whether the middleware has decided a request for its view."""
    return hasattr(_plain(request), _VIEWED)


def was_decided(request: Any) -> set[Rule]:
    """The rules that were decided for this request."""
    found: set[Rule] = _plain(request).__dict__.setdefault(_DECIDED, set())
    return found


def rulings_of_request(request: Any) -> list[Ruling]:
    """The rulings on this request so far."""
    found: list[Ruling] = _plain(request).__dict__.setdefault(_RULINGS, [])
    return found


def stamp(request: Any, response: Any) -> None:
    """Put the headers of limits on a response."""
    if hasattr(response, "headers"):
        put_on(response, rulings_of_request(request))


def settle_failed(request: Any, error: BaseException) -> None:
    """Settle charges without a response, after an error or a disconnect."""
    for ruling in rulings_of_request(request):
        ruling.settle(_response_to(error))


async def asettle_failed(request: Any, error: BaseException) -> None:
    """The awaitable twin of `settle_failed`."""
    await settle_all(rulings_of_request(request), _response_to(error))


# The status of the response that Django makes of an error, elsewhere and later.
_STATUSES: dict[type[Exception], int] = {
    Http404: 404,
    PermissionDenied: 403,
    BadRequest: 400,
    SuspiciousOperation: 400,
}


def _response_to(error: BaseException) -> Any:
    if not isinstance(error, Exception):
        return None
    known = (status for kind, status in _STATUSES.items() if isinstance(error, kind))
    return HttpResponse(status=next(known, 500))


def settle(request: Any, response: Any) -> list[Ruling]:
    """The rulings to be settled by this response, before its headers are written. Slots of a stream
    are held until its end."""
    waiting = [ruling for ruling in rulings_of_request(request) if ruling.held]
    if waiting and getattr(response, "streaming", False):
        for ruling in waiting:
            if ruling.holds_slots:
                response._resource_closers.append(partial(ruling.settle, response))
        return [ruling for ruling in waiting if not ruling.holds_slots]
    return waiting


def declared_rules() -> Iterator[tuple[str, Rule]]:
    """All limits of the project by name: of the settings, and of all views that have a URL."""
    seen: set[str] = set()
    for name, rule in _all_declared():
        if name not in seen:
            seen.add(name)
            yield name, rule


def _all_declared() -> Iterator[tuple[str, Rule]]:
    rules = limits_of_project().rules
    yield from rules.items()
    for view in _views(get_resolver().url_patterns):
        made_of = _class_of(view)
        for limited in (view, *_methods(made_of)):
            named: dict[str, Rule] = dict(rules)
            add_rules(named, getattr(limited, RULES, ()), view_name(limited))
            yield from named.items()
        # Of Django REST framework.
        for throttle in getattr(made_of, "throttle_classes", ()):
            yield from throttle.declared(made_of) if hasattr(throttle, "declared") else ()


def _class_of(view: Any) -> Any:
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def _methods(made_of: Any) -> Iterator[Any]:
    """The limited methods of a class of views."""
    for name in dir(made_of) if made_of is not None else ():
        method = getattr(made_of, name, None)
        if name != "dispatch" and hasattr(method, RULES):
            yield method


def _views(patterns: Iterable[Any]) -> Iterator[Any]:
    for pattern in patterns:
        if isinstance(pattern, URLPattern):
            yield pattern.callback
        else:
            yield from _views(pattern.url_patterns)
