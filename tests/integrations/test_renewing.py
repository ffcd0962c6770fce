"""A request may take longer than its slot is held for: the slot is renewed meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import flask
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock import Decision, Limit, Limits, ManualClock, MemoryStore, slots
from penstock.client import ServiceLimiter
from penstock.integrations import Rule
from penstock.integrations.asgi import RateLimitMiddleware
from penstock.integrations.flask import RateLimits
from tests.client.serving import TOKEN, RunningService
from tests.integrations.serving import client_of, serving

TTL_MS = 6_000


class Held:
    """A view that is in flight until it is let go, and the slot that it holds."""

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.store = MemoryStore(clock=self.clock)
        self.options: dict[str, Any] = {"store": self.store, "clock": self.clock}
        self.entered = threading.Event()
        self.go = threading.Event()

    def view(self) -> None:
        self.entered.set()
        assert self.go.wait(60)

    def wait_for_renewal(self) -> None:
        """By the instant at which the store would give the slot to somebody else."""
        with Limits({"app": slots(1, ttl_ms=TTL_MS)}, prefix="web", **self.options) as limits:
            deadline = time.monotonic() + 30
            while not _lasts(limits.peek({"app": "127.0.0.1"}).limits["app"], self.clock, TTL_MS):
                assert time.monotonic() < deadline, "the slot was not renewed"
                time.sleep(0.02)


def _lasts(decision: Decision, clock: ManualClock, ttl_ms: int) -> bool:
    """Whether the slot was renewed at this instant."""
    return decision.reset_at >= clock.now() + ttl_ms


def test_a_slot_is_renewed_for_as_long_as_its_request_runs() -> None:
    """By a thread for sync apps, by a task for async ones; at the end it is free at once."""
    sync, loop = Held(), Held()
    app = flask.Flask(__name__)
    RateLimits(app, Limit(slots(1, ttl_ms=TTL_MS)), **sync.options)

    @app.route("/")
    def home() -> str:
        sync.view()
        return "done"

    async def async_home(request: Request) -> Response:
        await asyncio.to_thread(loop.view)
        return PlainTextResponse("done")

    async_app = RateLimitMiddleware(
        Starlette(routes=[Route("/", async_home)]), Limit(slots(1, ttl_ms=TTL_MS)), **loop.options
    )
    with client_of(async_app) as client, ThreadPoolExecutor(2) as pool:

        def get(held: Held) -> int:
            if held is loop:
                answer: httpx.Response = client.get("/", timeout=60)
                return answer.status_code
            return app.test_client().get("/").status_code

        first = {held: pool.submit(get, held) for held in (sync, loop)}
        try:
            for held in (sync, loop):
                assert held.entered.wait(30)
                held.clock.advance(TTL_MS - 1_000)
            for held in (sync, loop):
                held.wait_for_renewal()
                held.clock.advance(TTL_MS - 1_000)
                # Later than it was held for at first, and still it is not there for others.
                assert get(held) == 429
        finally:
            sync.go.set()
            loop.go.set()
        for held, running in first.items():
            assert running.result(30) == 200
            assert get(held) == 200


def sync_app(held: Held, limiter: ServiceLimiter, rule: Rule, stack: ExitStack) -> Any:
    """What gets a page of a Flask app."""
    app = flask.Flask(__name__)
    RateLimits(app, rule)

    @app.route("/")
    def home() -> str:
        held.view()
        return "done"

    return app.test_client().get


def async_app(held: Held, limiter: ServiceLimiter, rule: Rule, stack: ExitStack) -> Any:
    """The same of a Starlette app, which closes what it asked by the limiter."""

    async def home(request: Request) -> Response:
        await asyncio.to_thread(held.view)
        return PlainTextResponse("done")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with limiter:
            yield

    app = RateLimitMiddleware(Starlette(routes=[Route("/", home)], lifespan=lifespan), rule)
    url = stack.enter_context(serving(app))
    return stack.enter_context(httpx.Client(base_url=url, timeout=60)).get


@pytest.mark.parametrize("made", [sync_app, async_app])
def test_a_slot_of_a_service_is_renewed_where_the_outcome_decides_what_is_charged(
    made: Callable[..., Any],
) -> None:
    """Then the policy is only ever reserved: that it has slots is told with the charge."""
    held = Held()
    options: Any = {"token": TOKEN, "timeout_ms": 10_000, "heartbeat_ms": 100}
    with RunningService(held.clock) as service, ExitStack() as stack:
        limiter, looking = (
            stack.enter_context(ServiceLimiter(service.url("http"), "key", **options))
            for _ in range(2)
        )
        rule = Rule(
            limiter,
            attributes=lambda request: {"key": "k"},
            charge_when=lambda response: response.status_code == 401,
        )
        get = made(held, limiter, rule, stack)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(get, "/")
            try:
                assert held.entered.wait(30)
                held.clock.advance(8_000)
                deadline = time.monotonic() + 30
                while not _lasts(looking.peek({"key": "k"}).limits["flight"], held.clock, 10_000):
                    assert time.monotonic() < deadline, "the slot was not renewed"
                    time.sleep(0.02)
            finally:
                held.go.set()
            assert running.result(30).status_code == 200
        after = looking.peek({"key": "k"}).limits
        assert (after["flight"].remaining, after["each"].remaining) == (1, 2)
