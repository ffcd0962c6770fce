"""A FastAPI app with limits: `uvicorn fastapi_app:app`, or run it to see what it answers."""

from __future__ import annotations

import asyncio

import httpx
from fastapi import Depends, FastAPI

from penstock.integrations.fastapi import RateLimit, install

app = FastAPI(dependencies=[Depends(RateLimit("100/minute"))])
install(app)


@app.get("/")
def home() -> dict[str, str]:
    return {"hello": "world"}


@app.get("/search", dependencies=[Depends(RateLimit("2/minute", name="search"))])
def search(text: str) -> dict[str, str]:
    return {"found": text}


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/", *["/search?text=penstock"] * 3):
            answer = await client.get(path)
            print(path, answer.status_code, answer.headers["ratelimit"])


if __name__ == "__main__":
    asyncio.run(main())
