"""Django REST framework: throttle classes.

They read `DEFAULT_THROTTLE_RATES` and scopes as those of the framework do. All throttles of a view
are one decision: the first that is asked finds the others among the view's throttle classes and
decides for all of them; the others return that result. So a request that one of them denies is
charged to none. The store and the other options are those of the setting `PENSTOCK`, as for Django.

Headers are on every response of the view, errors included, without a middleware.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

from ..core._durations import wait_in_words
from ..core._errors import require_module
from ..core._validation import reject
from ._deciding import RuleSet
from ._rules import Rule
from ._ruling import Ruling, give_back

require_module(__name__, "rest_framework")

from .django._limits import (  # noqa: E402
    is_viewed,
    limits_of_project,
    rulings_of_request,
    view_name,
)

__all__ = ["AnonThrottle", "LimitThrottle", "ScopedThrottle", "UserThrottle"]

_DECIDED = "_penstock_throttles"
# Shorter waits stay in seconds, in the words and the language of the framework.
_LONG_S = 3_600


class LimitThrottle:
    """The base of the throttles: a class of your own has a `scope`, whose rate is in
    `DEFAULT_THROTTLE_RATES`, or a `rate`, and may have a `get_key`.

        class Burst(UserThrottle):
            scope = "burst"
            rate = "10/second"
    """

    scope: str | None = None
    """Its name, among the rates of the settings and in headers."""
    rate: Any = None
    """Such as `"100/day"`, or a strategy; by default that of its scope."""
    cost: int = 1
    """What a request costs."""

    def get_key(self, request: Any, view: Any) -> str | None:
        """The key to count by; an empty one is the client's address, None skips the throttle."""
        return ""

    def get_scope(self, view: Any) -> str | None:
        """The scope for this view; None skips the throttle."""
        return self.scope

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether this throttle admits the request: called by the framework."""
        ruling = self._ruling(request, view)
        self._wait: float | None = None
        name = self.get_scope(view)
        if ruling is None or ruling.allowed or name is None:
            return True
        if ruling.verdict is None:
            self._wait = 1.0
            return False
        decision = ruling.verdict.limits.get(name)
        if decision is None or name not in ruling.verdict.violated:
            return True
        _put_long_waits_in_words(view)
        self._wait = decision.retry_after_ms / 1000
        return False

    def wait(self) -> float | None:
        """The seconds until a retry: called by the framework."""
        return self._wait

    @classmethod
    def declared(cls, view: Any) -> Iterator[tuple[str, Rule]]:
        """Its limit for a class of views, by name, for the command that lists those of a project. A
        scope that depends on the request is not known without one."""
        throttle = cls()
        with suppress(AttributeError):
            name, rate = throttle.get_scope(view), throttle._rate(view)
            if name is not None and rate is not None:
                yield name, throttle._rule(name, rate)

    def _ruling(self, request: Any, view: Any) -> Ruling | None:
        decided: dict[Any, Ruling | None] | None = getattr(request, _DECIDED, None)
        if decided is None or view not in decided:
            rules = self._rule_set(view)
            ruling = None if rules is None else rules.decide(_Throttled(request, view))
            decided = {view: ruling}
            setattr(request, _DECIDED, decided)
            if ruling is not None:
                if not ruling.allowed:
                    give_back(rulings_of_request(request._request))
                _tell(request._request, view, ruling)
        return decided[view]

    def _rule_set(self, view: Any) -> RuleSet | None:
        """The limits of all throttles of this kind that the view has."""
        throttles = [each for each in view.get_throttles() if isinstance(each, LimitThrottle)]
        rules: dict[str, Rule] = {}
        for throttle in throttles:
            name, rate = throttle.get_scope(view), throttle._rate(view)
            if name is not None and rate is not None:
                if name in rules:
                    reject(f"two throttles of {view_name(type(view))} have the scope {name!r}")
                rules[name] = throttle._rule(name, rate)
        return _made(tuple(rules.items())) if rules else None

    def _rate(self, view: Any) -> Any:
        if self.rate is not None:
            return self.rate
        scope = self.get_scope(view)
        if scope is None:
            return None
        from rest_framework.settings import api_settings

        rates = api_settings.DEFAULT_THROTTLE_RATES
        if scope not in rates:
            reject(f"there is no rate for the scope {scope!r} in DEFAULT_THROTTLE_RATES")
        return rates[scope]

    def _rule(self, name: str, rate: Any) -> Rule:
        wanted = type(self), name, rate
        with _lock:
            rule = _rules.get(wanted)
            if rule is None:
                rule = _rules[wanted] = Rule(rate, name=name, key=self._key, cost=self.cost)
                if rule.limit is not None and rule.limit.strategy.is_held:
                    reject("a throttle cannot hold slots; put @rate_limited on the view instead")
            return rule

    def _key(self, throttled: Any) -> str | None:
        return self.get_key(throttled.request, throttled.view)


class UserThrottle(LimitThrottle):
    """By user, of the scope `user`; anonymous requests count by the client's address."""

    scope: str | None = "user"

    def get_key(self, request: Any, view: Any) -> str | None:
        """The user's primary key, or the address."""
        user = request.user
        return f"user {user.pk}" if user is not None and user.is_authenticated else ""


class AnonThrottle(LimitThrottle):
    """By address, of the scope `anon`; requests of users are not limited."""

    scope: str | None = "anon"

    def get_key(self, request: Any, view: Any) -> str | None:
        """The address, or nothing for a user."""
        user = request.user
        return None if user is not None and user.is_authenticated else ""


class ScopedThrottle(UserThrottle):
    """Of the scope that the view names as its `throttle_scope`; views without one are not
    limited."""

    scope: str | None = None

    def get_scope(self, view: Any) -> str | None:
        """The view's `throttle_scope`."""
        scope: str | None = getattr(view, "throttle_scope", None)
        return scope


def _put_long_waits_in_words(view: Any) -> None:
    """Replace the `throttled` of the framework on this view, which serves one request; a class of
    views that has its own keeps it."""
    # Here, because the framework imports this module while it makes this class.
    from rest_framework.views import APIView

    if type(view).throttled is APIView.throttled:
        view.throttled = _throttled


def _throttled(_request: Any, wait: float | None) -> NoReturn:
    """As `throttled` of the framework, with long waits in words."""
    from rest_framework.exceptions import ErrorDetail, Throttled

    error = Throttled(wait)
    if wait is not None and wait >= _LONG_S:
        words = wait_in_words(int(wait * 1000))
        text = f"{Throttled.default_detail} Expected available in {words}."
        error.detail = ErrorDetail(text, Throttled.default_code)
    raise error


class _Throttled:
    """A request of the framework with its view; the rest is read from Django's request."""

    def __init__(self, request: Any, view: Any) -> None:
        self.request = request
        self.view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self.request, name)


_lock = threading.Lock()
_rules: dict[tuple[type, str, Any], Rule] = {}


def _made(rules: Iterable[tuple[str, Rule]]) -> RuleSet:
    """One set of rules for each combination, until the settings change."""
    project = limits_of_project()
    known: dict[Any, RuleSet] = project.__dict__.setdefault("throttles", {})
    with _lock:
        if rules not in known:
            known[rules] = RuleSet(project.limits, dict(rules))
        return known[rules]


def _tell(request: Any, view: Any, ruling: Ruling) -> None:
    """Pass the ruling to the middleware, if there is one, or else to the view, which adds its
    `headers` to every response. The framework itself adds `Retry-After` to refusals."""
    request.rate_limit = ruling.shown
    if is_viewed(request):
        rulings_of_request(request).append(ruling)
        return
    told = ruling.headers()
    told.pop("Retry-After", None)
    view.headers = {**view.headers, **told}
