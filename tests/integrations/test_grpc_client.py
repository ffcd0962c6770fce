"""The client interceptors: calls that wait before they go out, and pauses that a server asks."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import grpc
import pytest

from penstock import (
    ManualClock,
    RateLimitExceededError,
    fixed_window,
    gcra,
)
from penstock.adapters._headers import retry_delay_ms, retry_trailers
from penstock.integrations.grpc import (
    LimitClientInterceptor,
    LimitInterceptor,
    aio_client_interceptors,
)
from tests.integrations.grpc_echo import SERVICE, all_kinds, call, serving
from tests.support.helpers import NOW, run


@all_kinds
def test_a_client_waits_before_it_calls(kind: str) -> None:
    with serving(None) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as plain:
        channel = grpc.intercept_channel(plain, LimitClientInterceptor(gcra(1, 40)))
        began = time.monotonic()
        for _ in range(3):
            assert call(channel, kind)
        assert time.monotonic() - began >= 0.079
        channel = grpc.intercept_channel(plain, LimitClientInterceptor("1/minute", timeout=0))
        assert call(channel, kind)
        with pytest.raises(RateLimitExceededError):
            call(channel, kind)


@all_kinds
def test_a_client_is_paused_by_a_refusal_and_retries_nothing(kind: str) -> None:
    limit = LimitInterceptor(fixed_window(1, 60_000, anchor="first"), clock=ManualClock(NOW))
    with serving(limit) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as plain:
        channel = grpc.intercept_channel(plain, LimitClientInterceptor("100/second", timeout=0))
        assert call(channel, kind)
        with pytest.raises(grpc.RpcError):
            call(channel, kind)

        def call_until_paused() -> None:
            """The callback of a stream may come a moment after its end."""
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                with contextlib.suppress(grpc.RpcError):
                    call(channel, kind)

        with pytest.raises(RateLimitExceededError) as caught:
            call_until_paused()
        assert 50_000 < caught.value.decision.retry_after_ms <= 60_100


@all_kinds
def test_an_aio_client_waits_and_is_paused(kind: str) -> None:
    limit = LimitInterceptor(fixed_window(2, 60_000, anchor="first"), clock=ManualClock(NOW))

    async def send(channel: Any) -> int:
        method = getattr(channel, kind)(f"/{SERVICE}/{kind}")
        sent: Any = iter([b"x"]) if kind.startswith("stream") else b"x"
        answer = method(sent, timeout=30)
        if kind.endswith("stream"):
            return len([each async for each in answer])
        return len(await answer)

    async def send_until_paused(channel: Any) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await send(channel)

    async def main(port: int) -> int:
        interceptors = aio_client_interceptors(gcra(1, 40), timeout=20)
        target = f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(target, interceptors=interceptors) as channel:
            began = time.monotonic()
            assert await send(channel)
            assert await send(channel)
            assert time.monotonic() - began >= 0.039
            with pytest.raises(grpc.aio.AioRpcError):
                await send(channel)
            with pytest.raises(RateLimitExceededError) as caught:
                await send_until_paused(channel)
        await interceptors[0].aclose()
        return caught.value.decision.retry_after_ms

    with serving(limit) as port:
        assert 40_000 < run(main(port)) <= 60_100


def test_a_client_may_exempt_methods_and_part_them_by_key() -> None:
    with serving(None) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as plain:
        limit = LimitClientInterceptor(
            "1/minute",
            methods={"/*/unary_stream": None},
            key=lambda told: told.metadata["user"],
            timeout=0,
        )
        channel = grpc.intercept_channel(plain, limit)
        for user in ("a", "b"):
            assert call(channel, "unary_unary", (("user", user),))
        assert call(channel, "unary_stream")
        with pytest.raises(RateLimitExceededError):
            call(channel, "stream_unary", (("user", "a"),))
        limit.close()


@pytest.mark.parametrize("delay_ms", [1, 999, 1_000, 60_500, 86_400_000])
def test_a_delay_is_read_as_it_was_written(delay_ms: int) -> None:
    """From the pushback, and from the details alone."""
    pushback, details = retry_trailers("wait", delay_ms)
    assert retry_delay_ms([pushback]) == delay_ms
    assert retry_delay_ms([details]) == delay_ms


@pytest.mark.parametrize(
    "trailers",
    [
        None,
        [],
        [("grpc-retry-pushback-ms", "-1")],
        [("grpc-status-details-bin", b"")],
        [("grpc-status-details-bin", b"\xff")],
        [("grpc-status-details-bin", b"\x1a\x05abc")],
        [("grpc-status-details-bin", b"\x08\x08\x12\x01a")],
        [("grpc-status-details-bin", "text")],
    ],
)
def test_trailers_that_tell_no_delay_are_left_alone(trailers: Any) -> None:
    assert retry_delay_ms(trailers) is None
