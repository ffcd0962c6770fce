"""WebSockets behind the ASGI middleware, in a real server."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, WebSocketRoute
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from penstock.integrations import Rule
from penstock.integrations.asgi import RateLimitMiddleware
from tests.integrations.asgi_app import echo, starlette
from tests.integrations.serving import FIVE, ONE, TWO, client_of, left, members


def websocket_url(client: httpx.Client) -> str:
    return str(client.base_url.copy_with(scheme="ws")).rstrip("/") + "/echo"


def test_a_websocket_is_limited_when_it_connects() -> None:
    """With 429, as a request would be, and headers on the one that is accepted."""
    with client_of(starlette(ONE)) as client:
        with connect(websocket_url(client)) as there:
            assert there.response is not None
            assert left(there.response.headers["ratelimit"], "app") == 0
            there.send("hello")
            assert there.recv() == "hello"
        with pytest.raises(InvalidStatus) as refused:
            connect(websocket_url(client)).__enter__()
    answer = refused.value.response
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 1
    assert b"quota-exceeded" in bytes(answer.body or b"")


def test_a_websocket_of_a_mounted_app_has_its_headers_once() -> None:
    """Both limits, by the outer one."""
    inner = RateLimitMiddleware(
        Starlette(routes=[WebSocketRoute("/", echo)]), Rule(ONE, name="inner")
    )
    app = RateLimitMiddleware(Starlette(routes=[Mount("/in", inner)]), Rule(FIVE, name="outer"))
    with client_of(app) as client:
        url = f"ws://{client.base_url.netloc.decode()}/in/"
        with connect(url) as socket:
            (line,) = socket.response.headers.get_all("ratelimit")
            assert members(line) == ["inner", "outer"]
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
    assert refused.value.response.status_code == 429
    (line,) = refused.value.response.headers.get_all("ratelimit")
    assert members(line)[0] == "inner"


def test_a_message_too_many_closes_the_websocket_and_says_why() -> None:
    """The app sees a disconnect; the client a code and a reason."""
    with client_of(starlette(messages=TWO)) as client, connect(websocket_url(client)) as there:
        for text in ("one", "two"):
            there.send(text)
            assert there.recv() == text
        there.send("three")
        with pytest.raises(ConnectionClosedError) as closed:
            there.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert "rate limit exceeded, try again in" in closed.value.rcvd.reason
