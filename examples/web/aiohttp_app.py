"""An aiohttp server with limits: run it to see what it answers."""

from __future__ import annotations

import asyncio

from aiohttp import ClientSession, web

from penstock.integrations.aiohttp import rate_limited, setup


async def home(request: web.Request) -> web.Response:
    return web.Response(text="hello\n")


@rate_limited("2/minute")
async def search(request: web.Request) -> web.Response:
    return web.Response(text="found\n")


def make_app() -> web.Application:
    app = web.Application()
    setup(app, "100/minute")
    app.router.add_get("/", home)
    app.router.add_get("/search", search)
    return app


async def main() -> None:
    runner = web.AppRunner(make_app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with ClientSession(f"http://127.0.0.1:{port}") as session:
        for path in ("/", "/search", "/search", "/search"):
            async with session.get(path) as answer:
                print(path, answer.status, answer.headers["RateLimit"])
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
