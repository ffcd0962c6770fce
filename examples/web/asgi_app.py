"""A Starlette app with limits: `uvicorn asgi_app:app`, or run it to see what it answers."""

from __future__ import annotations

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock.integrations import Rule
from penstock.integrations.asgi import RateLimitMiddleware


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"hello, {request.state.rate_limit.remaining} left\n")


async def search(request: Request) -> PlainTextResponse:
    return PlainTextResponse("found\n")


app = RateLimitMiddleware(
    Starlette(routes=[Route("/", home), Route("/search", search)]),
    Rule("100/minute", name="all"),
    Rule("2/minute", name="search", paths="/search"),
)


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/", "/search", "/search", "/search"):
            answer = await client.get(path)
            print(path, answer.status_code, answer.headers["ratelimit"])


if __name__ == "__main__":
    asyncio.run(main())
