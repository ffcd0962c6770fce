"""Quart: the extension for Flask, for async apps.

Limits are declared as in Flask; waiting does not block the event loop. Headers are added, and
charges that are held until the end of a response are settled, in ASGI around the app, where the end
of a stream is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from ..core._errors import require_module
from ..core._validation import reject
from ._asgi import note, rulings_of
from ._deciding import RuleSet
from ._rules import Rule, WebOptions
from ._ruling import PROBLEM_JSON, agive_back
from .asgi import RateLimitMiddleware

require_module(__name__, "quart")

from quart import (  # noqa: E402
    Quart,
    Response,
    current_app,
    g,
    has_websocket_context,
    request,
    websocket,
)

from .flask import (  # noqa: E402
    _KEY,
    RateLimits,
    _as_error,
    _asked_of,
    _ViewLimits,
    _WerkzeugReader,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AsyncRateLimits"]


class _QuartReader(_WerkzeugReader):
    def peer(self, request: Any) -> str | None:
        client = request.scope.get("client") or [request.remote_addr]
        peer: str | None = client[0]
        return peer

    def header(self, request: Any, name: str) -> str | None:
        found = request.headers.getlist(name)
        return ",".join(found) if found else None


class AsyncRateLimits(RateLimits):
    """The extension: `AsyncRateLimits(app, "100/minute")`, or `init_app` later; as for Flask.

    Functions for keys, costs and exemptions, and `on_denied`, may be async. The `Verdict` is
    `g.rate_limit`. A store that was opened from a URL is closed when the app has served.
    """

    awaits = True

    def __init__(
        self, app: Quart | None = None, *limits: Any, **options: Unpack[WebOptions]
    ) -> None:
        given: Any = app
        super().__init__(given, *limits, **options)

    def init_app(self, app: Any) -> None:
        """Limit this app; one extension may serve several."""
        if _KEY in app.extensions:
            reject("this app has an extension of Penstock already; give its limits to that one")
        served = RateLimitMiddleware(app.asgi_app, **self._options)
        served.limits.reader = _QuartReader()
        app.asgi_app = served
        app.extensions[_KEY] = _ViewLimits(self, served.limits, app)
        app.before_request(_before)
        app.before_websocket(_before)

    @property
    def verdict(self) -> Any:
        """The verdict of the current request; None if it is not limited."""
        return g.get("rate_limit")

    @staticmethod
    def _limited(view: Callable[..., Any], rules: list[Rule]) -> Callable[..., Any]:
        @wraps(view)
        async def limited(*args: Any, **named: Any) -> Any:
            missing = _asked_of(g).missing(rules)
            if missing:
                limits, asked = _limits(), _asked()
                hidden = limits.hidden(str(asked.endpoint), view, missing)
                refusal = await _decide(limits, hidden, asked)
                if refusal is not None:
                    return refusal
            return await current_app.ensure_async(view)(*args, **named)

        return limited


def _limits() -> _ViewLimits:
    found: _ViewLimits | None = current_app.extensions.get(_KEY)
    if found is None:
        reject("this app's views are limited, but the app is not: call limits.init_app(app)")
    return found


def _asked() -> Any:
    """The current request, or the WebSocket that is to be accepted."""
    return websocket if has_websocket_context() else request


async def _before() -> Any:
    limits, asked = _limits(), _asked()
    return await _decide(limits, limits.rules_for(asked.endpoint), asked)


async def _decide(limits: _ViewLimits, rules: RuleSet | None, asked: Any) -> Any:
    """Decide, and return what to answer instead of the view, or None."""
    if rules is None:
        return None
    _asked_of(g).rule_sets.append(rules)
    ruling = await rules.adecide(asked)
    if ruling is None:
        return None
    g.rate_limit = ruling.shown
    scope: Any = asked.scope
    rulings, _ = rulings_of(scope)
    note(scope, ruling)
    if ruling.allowed:
        return None
    await agive_back(rulings)
    handler = limits.limits.on_denied
    answer: Any = None
    if handler is not None:
        answer = handler(asked, ruling.verdict)
        answer = await answer if inspect.isawaitable(answer) else answer
    if answer is not None:
        return answer
    error = _as_error(ruling)
    answer = await current_app.handle_http_exception(error)
    if answer is not error:
        return answer
    return Response(ruling.problem(), ruling.status, content_type=PROBLEM_JSON)
