"""The peers of the HTTP server: the same endpoint with FastAPI and limits, and an ASGI application
that answers with a constant and so shows what the server alone costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

__all__ = ["constant", "make_fastapi"]

_REPLY = b'{"allowed":true,"remaining":9,"limit":10,"reset_at":1767268800000,"retry_after_ms":0}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_REPLY))]


async def constant(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[Any]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Reads nothing, decides nothing."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": _REPLY})


def make_fastapi() -> Any:
    """`POST /check` as one would write it."""
    fastapi = import_module("fastapi")
    limits = import_module("limits")
    storage = import_module("limits.storage").MemoryStorage()
    limiter = import_module("limits.strategies").FixedWindowRateLimiter(storage)
    reply = import_module("fastapi.responses").JSONResponse
    asked_for = import_module("pydantic").create_model(
        "Check", key=(str, ...), limit=(int, ...), window_ms=(int, ...), cost=(int, 1)
    )
    app = fastapi.FastAPI()

    async def check(asked: Any) -> Any:
        item = limits.RateLimitItemPerSecond(asked.limit, max(1, asked.window_ms // 1000))
        allowed = limiter.hit(item, asked.key, cost=asked.cost)
        stats = limiter.get_window_stats(item, asked.key)
        body = {
            "allowed": allowed,
            "remaining": stats.remaining,
            "limit": asked.limit,
            "reset_at": int(stats.reset_time * 1000),
        }
        return reply(body, status_code=200 if allowed else 429)

    # What the framework reads the body's form from.
    check.__annotations__ = {"asked": asked_for}
    app.post("/check")(check)
    return app
