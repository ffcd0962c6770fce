"""The middleware and the decorator of Django."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

from ...core._validation import reject, shown
from .._deciding import RuleSet
from .._rules import Rule
from ._limits import (
    RULES,
    adecide,
    asettle_failed,
    decide,
    is_viewed,
    limits_of_project,
    settle,
    settle_failed,
    stamp,
    view_name,
    viewed,
    was_decided,
)

# After the import that reports a missing Django.
from asgiref.sync import iscoroutinefunction, markcoroutinefunction  # isort: skip
from django.utils.decorators import method_decorator  # isort: skip

__all__ = ["LimitMiddleware", "by_user", "rate_limited"]

View = TypeVar("View")


def by_user(request: Any) -> str | None:
    """A key: the logged-in user. Anonymous requests count by the client's address."""
    user = getattr(request, "user", None)
    return f"user {user.pk}" if user is not None and user.is_authenticated else ""


class LimitMiddleware:
    """Decides the limits of the settings and of the view, together, before the view is called, and
    puts the headers on every response. For WSGI and for ASGI. The `Verdict` is
    `request.rate_limit`."""

    sync_capable = True
    """It serves sync requests."""
    async_capable = True
    """It serves async requests."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response: Callable[[Any], Any] = get_response
        # Mistakes in the settings are reported when the server starts.
        limits_of_project()
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self.process_view = self._aprocess_view  # type: ignore[method-assign]
            self._is_async = True
        else:
            self._is_async = False

    def __call__(self, request: Any) -> Any:
        """Serve one request."""
        if self._is_async:
            return self._acall(request)
        try:
            response = self.get_response(request)
        except BaseException as error:
            # Django answers errors in inner layers, unless it is configured to propagate them.
            settle_failed(request, error)
            raise
        if not is_viewed(request):
            response = decide(request, limits_of_project().rules_for("", ())) or response
        for ruling in settle(request, response):
            ruling.settle(response)
        stamp(request, response)
        return response

    async def _acall(self, request: Any) -> Any:
        try:
            response = await self.get_response(request)
        except BaseException as error:
            # The same; and the server cancels the task of a client that disconnects.
            await asettle_failed(request, error)
            raise
        if not is_viewed(request):
            rules = limits_of_project().rules_for("", ())
            response = await adecide(request, rules) or response
        for ruling in settle(request, response):
            await ruling.asettle(response)
        stamp(request, response)
        return response

    def process_view(self, request: Any, view: Any, args: Any, named: Any) -> Any:
        """The response instead of the view's, or None."""
        return decide(request, self._rules(request, view))

    async def _aprocess_view(self, request: Any, view: Any, args: Any, named: Any) -> Any:
        return await adecide(request, self._rules(request, view))

    def _rules(self, request: Any, view: Any) -> Any:
        viewed(request)
        rules = getattr(view, RULES, ())
        return limits_of_project().rules_for(view_name(view) if rules else "", rules)


def rate_limited(*limits: Any, **options: Any) -> Callable[[View], View]:
    """A decorator for views, sync and async, for classes of views and methods of those. It takes
    what a `Rule` takes; several limits, in one decorator or in more, are one decision with those of
    the settings.

        @rate_limited("5/minute", key=by_user, methods=["POST"])
        def comment(request): ...
    """
    rules = [limit if isinstance(limit, Rule) else Rule(limit, **options) for limit in limits]
    if not rules:
        reject("a limit must be given, such as @rate_limited('100/minute')")
    return partial(_limited, rules)


def _limited(rules: list[Rule], view: Any, is_async: bool = False) -> Any:
    """A view, or a class of views, with its limits and those of decorators below."""
    if isinstance(view, type):
        # The `dispatch` of async handlers is not a coroutine function itself.
        is_async = getattr(view, "view_is_async", False)
        limit = partial(_limited, rules, is_async=is_async)
        return method_decorator(limit, name="dispatch")(view)
    if not callable(view):
        reject(f"rate_limited decorates a view, not {shown(view)}")
    declared = [*rules, *getattr(view, RULES, ())]
    is_async = is_async or iscoroutinefunction(view)
    limited = _async_view(view, declared) if is_async else _sync_view(view, declared)
    setattr(limited, RULES, declared)
    return limited


def _sync_view(view: Any, declared: list[Rule]) -> Any:
    @wraps(view)
    def limited(*args: Any, **named: Any) -> Any:
        request = _request_in(args, named)
        left = _undecided(request, view, declared)
        refusal = decide(request, left)
        if left is None or is_viewed(request):
            return view(*args, **named) if refusal is None else refusal
        try:
            response = view(*args, **named) if refusal is None else refusal
        except BaseException as error:
            settle_failed(request, error)
            raise
        for ruling in settle(request, response):
            ruling.settle(response)
        stamp(request, response)
        return response

    return limited


def _async_view(view: Any, declared: list[Rule]) -> Any:
    @wraps(view)
    async def limited(*args: Any, **named: Any) -> Any:
        request = _request_in(args, named)
        left = _undecided(request, view, declared)
        refusal = await adecide(request, left)
        if left is None or is_viewed(request):
            return await view(*args, **named) if refusal is None else refusal
        try:
            response = await view(*args, **named) if refusal is None else refusal
        except BaseException as error:
            await asettle_failed(request, error)
            raise
        for ruling in settle(request, response):
            await ruling.asettle(response)
        stamp(request, response)
        return response

    return limited


def _request_in(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The request among the arguments of a view. A method has it after its object."""
    given = (*args[:2], named.get("request"))
    found = next((each for each in given if hasattr(each, "META")), None)
    if found is None:
        reject("rate_limited decorates views, and this was called without a request")
    return found


def _undecided(request: Any, view: Any, declared: list[Rule]) -> RuleSet | None:
    """The limits that neither the middleware nor another decorator has decided."""
    missing = [rule for rule in declared if rule not in was_decided(request)]
    if not missing:
        return None
    return limits_of_project().rules_for(view_name(view), missing, alone=True)
