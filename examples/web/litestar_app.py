"""A Litestar app with limits: `uvicorn litestar_app:app`, or run it to see what it answers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from litestar import Litestar, get

from penstock.integrations import Rule
from penstock.integrations.litestar import RateLimitPlugin


@get("/")
async def home() -> dict[str, str]:
    return {"hello": "world"}


@get("/search", opt={"rate_limit": Rule("2/minute", name="search")})
async def search() -> dict[str, str]:
    return {"found": "it"}


app = Litestar([home, search], plugins=[RateLimitPlugin("100/minute")])


async def main() -> None:
    served: Any = app
    transport = httpx.ASGITransport(served)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/", "/search", "/search", "/search"):
            answer = await client.get(path)
            print(path, answer.status_code, answer.headers["ratelimit"])


if __name__ == "__main__":
    asyncio.run(main())
