"""The middleware and the decorator of Django."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

from ...core._validation import reject, shown
from .._rules import Rule
from ._limits import (
    RULES,
    VIEWED,
    adecide,
    asettle_failed,
    decide,
    limits_of_project,
    settle,
    settle_failed,
    stamp,
    view_name,
    was_decided,
)

# After what says how to install them.
from asgiref.sync import iscoroutinefunction, markcoroutinefunction  # isort: skip
from django.utils.decorators import method_decorator  # isort: skip

__all__ = ["LimitMiddleware", "by_user", "rate_limited"]

View = TypeVar("View")


def by_user(request: Any) -> str | None:
    """A key: who is logged in. Others count by the client's address."""
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
        # Mistakes in the settings are told when the server starts.
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
        response = self.get_response(request)
        if not hasattr(request, VIEWED):
            response = decide(request, limits_of_project().rules_for("", ())) or response
        stamp(request, response)
        for ruling in settle(request, response):
            ruling.settle(response)
        return response

    async def _acall(self, request: Any) -> Any:
        try:
            response = await self.get_response(request)
        except BaseException as error:
            # Django answers errors further in; its server cancels what a client has left.
            await asettle_failed(request, error)
            raise
        if not hasattr(request, VIEWED):
            rules = limits_of_project().rules_for("", ())
            response = await adecide(request, rules) or response
        stamp(request, response)
        for ruling in settle(request, response):
            await ruling.asettle(response)
        return response

    def process_view(self, request: Any, view: Any, args: Any, named: Any) -> Any:
        """What to answer instead of the view, or None."""
        return decide(request, self._rules(request, view))

    async def _aprocess_view(self, request: Any, view: Any, args: Any, named: Any) -> Any:
        return await adecide(request, self._rules(request, view))

    def _rules(self, request: Any, view: Any) -> Any:
        setattr(request, VIEWED, True)
        rules = getattr(view, RULES, ())
        return limits_of_project().rules_for(view_name(view) if rules else "", rules)


def rate_limited(*limits: Any, **options: Any) -> Callable[[View], View]:
    """A decorator for views, sync and async, and for classes of views. It takes what a `Rule`
    takes; several limits, in one decorator or in more, are one decision with those of the settings.

        @rate_limited("5/minute", key=by_user, methods=["POST"])
        def comment(request): ...
    """
    rules = [limit if isinstance(limit, Rule) else Rule(limit, **options) for limit in limits]
    if not rules:
        reject("a limit must be given, such as @rate_limited('100/minute')")

    def decorate(view: Any, is_async: bool = False) -> Any:
        if isinstance(view, type):
            # What dispatches for async handlers is no coroutine function itself.
            is_async = getattr(view, "view_is_async", False)
            return method_decorator(partial(decorate, is_async=is_async), name="dispatch")(view)
        if not callable(view):
            reject(f"rate_limited decorates a view, not {shown(view)}")
        is_async = is_async or iscoroutinefunction(view)
        limited = _async_view(view) if is_async else _sync_view(view)
        setattr(limited, RULES, [*rules, *getattr(view, RULES, ())])
        return limited

    def open_rules(request: Any, view: Any) -> Any:
        """Of this decorator and those below, what no middleware has decided."""
        declared = [*rules, *getattr(view, RULES, ())]
        missing = [rule for rule in declared if rule not in was_decided(request)]
        if not missing:
            return None
        return limits_of_project().rules_for(view_name(view), missing, alone=True)

    def _sync_view(view: Any) -> Any:
        @wraps(view)
        def limited(request: Any, *args: Any, **named: Any) -> Any:
            left = open_rules(request, view)
            if left is None:
                return view(request, *args, **named)
            try:
                response = decide(request, left) or view(request, *args, **named)
            except BaseException as error:
                settle_failed(request, error)
                raise
            stamp(request, response)
            for ruling in settle(request, response):
                ruling.settle(response)
            return response

        return limited

    def _async_view(view: Any) -> Any:
        @wraps(view)
        async def limited(request: Any, *args: Any, **named: Any) -> Any:
            left = open_rules(request, view)
            if left is None:
                return await view(request, *args, **named)
            try:
                response = await adecide(request, left) or await view(request, *args, **named)
            except BaseException as error:
                await asettle_failed(request, error)
                raise
            stamp(request, response)
            for ruling in settle(request, response):
                await ruling.asettle(response)
            return response

        return limited

    return decorate
