"""A Starlette app behind limits."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from penstock.integrations.asgi import RateLimitMiddleware


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("home")


async def seen(request: Request) -> JSONResponse:
    verdict = request.state.rate_limit
    return JSONResponse({"remaining": verdict.remaining, "binding": verdict.binding})


async def stream(request: Request) -> StreamingResponse:
    async def chunks() -> Any:
        for each in (b"one ", b"two"):
            await asyncio.sleep(0)
            yield each

    return StreamingResponse(chunks())


async def failing(request: Request) -> None:
    raise RuntimeError("nobody handles this")


async def refused(request: Request) -> None:
    raise HTTPException(403)


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


def starlette(*limits: Any, **options: Any) -> Any:
    app = Starlette(
        routes=[
            Route("/", home, methods=["GET", "POST"]),
            Route("/seen", seen),
            Route("/stream", stream),
            Route("/failing", failing),
            Route("/refused", refused),
            Route("/users/{id}", home),
            Mount("/inner", routes=[Route("/items/{id}", home)]),
            WebSocketRoute("/echo", echo),
        ]
    )
    return RateLimitMiddleware(app, *limits, **options)
