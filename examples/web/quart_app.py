"""A Quart app with limits: `quart --app quart_app run`, or run it to see what it answers."""

from __future__ import annotations

import asyncio

from quart import Quart

from penstock.integrations.quart import AsyncRateLimits

app = Quart(__name__)
limits = AsyncRateLimits(app, "100/minute")


@app.route("/")
async def home() -> str:
    return "hello\n"


@app.route("/search")
@limits.limit("2/minute")
async def search() -> str:
    return "found\n"


async def main() -> None:
    client = app.test_client()
    for path in ("/", "/search", "/search", "/search"):
        answer = await client.get(path)
        print(path, answer.status_code, answer.headers["RateLimit"])


if __name__ == "__main__":
    asyncio.run(main())
