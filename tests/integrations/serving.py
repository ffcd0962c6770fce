"""Real servers for the apps of these tests, in threads of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import uvicorn

# Long enough that nothing is replenished while a test runs.
FIVE = "5/day"
TWO = "2/day"
ONE = "1/day"


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[str]:
    """The base URL of an ASGI app that uvicorn serves."""
    config = uvicorn.Config(
        app, port=0, log_level="critical", ws="websockets-sansio", **{"lifespan": "on", **options}
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="uvicorn")
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive(), "uvicorn ended before it served"
            assert time.monotonic() < deadline, "uvicorn did not start"
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


class Shared:
    """One server for many apps, one after the other: to start and stop one takes a while."""

    def __init__(self) -> None:
        self._app: Any = None
        self._stack = ExitStack()
        self._url: str | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def serve(self, app: Any) -> str:
        """The base URL, with this app behind it from now on."""
        self._app = app
        if self._url is None:
            options = {"lifespan": "off", "proxy_headers": False}
            self._url = self._stack.enter_context(serving(self, **options))
        return self._url

    def close(self) -> None:
        self._stack.close()
        self._url = None


shared = Shared()


@contextmanager
def client_of(app: Any) -> Iterator[httpx.Client]:
    """A client of an ASGI app behind a real server. Each request has a connection of its own:
    uvicorn closes that of an app that raised, and who reuses it may be too late to see."""
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=shared.serve(app), limits=limits) as client:
        yield client


def members(field: str) -> list[str]:
    """The names in a `RateLimit` header, in order."""
    return [member.split('"')[1] for member in field.split(", ")]


def left(field: str, name: str) -> int:
    """What remains of a limit, by the header `RateLimit`."""
    (found,) = [member for member in field.split(", ") if member.startswith(f'"{name}"')]
    return int(found.split(";")[1].removeprefix("r="))
