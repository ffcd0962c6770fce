"""The peers of the HTTP door: the same endpoint with FastAPI and limits, and an ASGI application
that answers with a constant and so shows what the server alone costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse
    from limits import RateLimitItemPerSecond
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter
    from pydantic import BaseModel

    class Check(BaseModel):
        key: str
        limit: int
        window_ms: int
        cost: int = 1

    app = FastAPI()
    limiter = FixedWindowRateLimiter(MemoryStorage())

    async def check(asked: Check) -> JSONResponse:
        item = RateLimitItemPerSecond(asked.limit, max(1, asked.window_ms // 1000))
        allowed = limiter.hit(item, asked.key, cost=asked.cost)
        stats = limiter.get_window_stats(item, asked.key)
        body = {
            "allowed": allowed,
            "remaining": stats.remaining,
            "limit": asked.limit,
            "reset_at": int(stats.reset_time * 1000),
        }
        return JSONResponse(body, status_code=200 if allowed else 429)

    check.__annotations__["asked"] = Check
    app.post("/check")(check)
    return app
