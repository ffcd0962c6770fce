"""Interceptors for gRPC, on real servers and channels: sync and aio, all four kinds of calls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status

from penstock import (
    ConfigInvalidError,
    Limit,
    ManualClock,
    RateLimitExceededError,
    Store,
    StoreUnavailableError,
    fixed_window,
    gcra,
    rate_limit,
    slots,
)
from penstock.adapters._grpc_status import retry_delay_ms, retry_trailers
from penstock.integrations.grpc import (
    AioLimitInterceptor,
    GrpcCall,
    LimitClientInterceptor,
    LimitInterceptor,
    aio_client_interceptors,
    by_peer,
)
from tests.stores.redis.live import PATIENT_MS, new_key, url_of
from tests.support.helpers import NOW, run

KINDS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]
all_kinds = pytest.mark.parametrize("kind", KINDS)
SERVICE = "test.Echo"


def echo(request: bytes, context: Any) -> bytes:
    return request


def echo_out(request: bytes, context: Any) -> Iterator[bytes]:
    yield request
    yield request


def echo_in(requests: Iterator[bytes], context: Any) -> bytes:
    return b"".join(requests)


def echo_both(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    yield from requests


async def aecho(request: bytes, context: Any) -> bytes:
    return request


async def aecho_out(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield request
    yield request


async def aecho_in(requests: AsyncIterator[bytes], context: Any) -> bytes:
    return b"".join([request async for request in requests])


async def aecho_both(requests: AsyncIterator[bytes], context: Any) -> None:
    """Writes by itself, instead of yielding."""
    async for request in requests:
        await context.write(request)


SYNC = dict(zip(KINDS, (echo, echo_out, echo_in, echo_both), strict=True))
AIO = dict(zip(KINDS, (aecho, aecho_out, aecho_in, aecho_both), strict=True))


def handlers(functions: dict[str, Any]) -> Any:
    made = {kind: getattr(grpc, f"{kind}_rpc_method_handler")(f) for kind, f in functions.items()}
    return grpc.method_handlers_generic_handler(SERVICE, made)


@contextlib.contextmanager
def serving(interceptor: Any, functions: dict[str, Any] = SYNC) -> Iterator[int]:
    with ThreadPoolExecutor(8) as executor:
        server = grpc.server(executor, interceptors=[interceptor] if interceptor else [])
        server.add_generic_rpc_handlers((handlers(functions),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


@contextlib.contextmanager
def aio_serving(interceptor: Any, functions: dict[str, Any] = AIO) -> Iterator[int]:
    """In a loop of its own, in a thread."""
    ports: list[int] = []
    ready, end = threading.Event(), threading.Event()

    async def main() -> None:
        server = grpc.aio.server(
            migration_thread_pool=ThreadPoolExecutor(2),
            interceptors=[interceptor],
        )
        server.add_generic_rpc_handlers((handlers(functions),))
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        ready.set()
        while not end.is_set():
            await asyncio.sleep(0.01)
        await server.stop(None)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(20)
    try:
        yield ports[0]
    finally:
        end.set()
        thread.join()


SERVERS = {"sync": (LimitInterceptor, serving), "aio": (AioLimitInterceptor, aio_serving)}
both_servers = pytest.mark.parametrize("server", SERVERS)


def call(channel: Any, kind: str, metadata: Any = None) -> list[bytes]:
    """What comes back for one message, or for one."""
    method = getattr(channel, kind)(f"/{SERVICE}/{kind}")
    sent: Any = iter([b"x"]) if kind.startswith("stream") else b"x"
    answer = method(sent, metadata=metadata, timeout=30)
    return list(answer) if kind.endswith("stream") else [answer]


@both_servers
@all_kinds
def test_a_server_refuses_with_the_time_to_wait(server: str, kind: str) -> None:
    """As a RetryInfo in the status, and as the pushback that client libraries obey."""
    make, serve = SERVERS[server]
    limit = make(fixed_window(2, 60_000, anchor="first"), clock=ManualClock(NOW))
    with serve(limit) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert call(channel, kind)
        assert call(channel, kind)
        with pytest.raises(grpc.RpcError) as caught:
            call(channel, kind)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "in 60000 ms" in error.details()
    assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "60000"
    info = RetryInfo()
    status = rpc_status.from_call(error)
    assert status is not None
    assert status.details[0].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == 60_000


@both_servers
def test_methods_have_limits_of_their_own_or_none(server: str) -> None:
    make, serve = SERVERS[server]
    limit = make(
        "2/minute",
        methods={f"/{SERVICE}/unary_unary": "1/minute", "/*/unary_*": None},
        key=lambda call: call.metadata.get("user", "nobody"),
    )
    with serve(limit) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

        def admitted(kind: str, user: str) -> int:
            count = 0
            with contextlib.suppress(grpc.RpcError):
                for _ in range(4):
                    call(channel, kind, (("user", user),))
                    count += 1
            return count

        assert admitted("unary_unary", "a") == 1
        assert admitted("unary_unary", "b") == 1
        assert admitted("unary_stream", "a") == 4
        assert admitted("stream_unary", "a") == 2
        assert admitted("stream_stream", "a") == 0
        assert admitted("stream_stream", "b") == 2


@both_servers
def test_several_limits_and_slots_are_one_decision(server: str) -> None:
    """A slot is held until the call ends, and only then."""
    make, serve = SERVERS[server]
    limit = make(
        {
            "flight": slots(1, ttl_ms=60_000),
            "rate": "100/minute",
            "all": Limit("100/minute", keyless=True),
        }
    )
    with serve(limit) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        both = channel.stream_stream(f"/{SERVICE}/stream_stream")
        go_on = threading.Event()

        def requests() -> Iterator[bytes]:
            yield b"x"
            go_on.wait(20)

        under_way = both(requests(), timeout=30)
        assert next(under_way) == b"x"
        with pytest.raises(grpc.RpcError):
            call(channel, "unary_unary")
        go_on.set()
        assert list(under_way) == []
        deadline = time.monotonic() + 20
        while True:
            try:
                assert call(channel, "unary_unary") == [b"x"]
                break
            except grpc.RpcError:
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_plain_handlers_of_an_aio_server_are_limited_too() -> None:
    limit = AioLimitInterceptor("1/minute")
    with (
        aio_serving(limit, {"unary_unary": echo, "unary_stream": echo_out}) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert call(channel, "unary_stream") == [b"x", b"x"]
        with pytest.raises(grpc.RpcError):
            call(channel, "unary_unary")


def test_keys_may_be_awaited_by_an_aio_server() -> None:
    async def key(told: GrpcCall) -> str:
        await asyncio.sleep(0)
        return str(told.metadata["user"])

    limit = AioLimitInterceptor("1/minute", key=key)
    with (
        aio_serving(limit) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert call(channel, "unary_unary", (("user", "a"),))
        assert call(channel, "unary_unary", (("user", "b"),))
        with pytest.raises(grpc.RpcError):
            call(channel, "unary_unary", (("user", "a"),))


class Away(Store):
    """A store that does not answer."""

    def apply(self, *_words: Any) -> Any:
        raise StoreUnavailableError("gone")

    async def aapply(self, *_words: Any) -> Any:
        raise StoreUnavailableError("gone")


@both_servers
@pytest.mark.parametrize(
    ("fail", "code"), [("open", None), ("closed", "RESOURCE_EXHAUSTED"), ("error", "UNAVAILABLE")]
)
def test_a_store_that_is_away_is_answered_by_the_fail_mode(
    server: str, fail: str, code: str | None
) -> None:
    make, serve = SERVERS[server]
    limit = make("1/minute", store=Away(), fail=fail)
    with serve(limit) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        if code is None:
            assert call(channel, "unary_unary") == [b"x"]
            return
        with pytest.raises(grpc.RpcError) as caught:
            call(channel, "unary_unary")
    error: Any = caught.value
    assert error.code().name == code


def test_servers_share_a_limit_through_a_store() -> None:
    options = {"store": f"{url_of('valkey')}?timeout_ms={PATIENT_MS}", "prefix": new_key()}
    limits = [LimitInterceptor("2/minute", **options), LimitInterceptor("2/minute", **options)]
    with serving(limits[0]) as one, serving(limits[1]) as two:
        for port in (one, two):
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                assert call(channel, "unary_unary")
        with (
            grpc.insecure_channel(f"127.0.0.1:{one}") as channel,
            pytest.raises(grpc.RpcError),
        ):
            call(channel, "unary_unary")
    for limit in limits:
        limit.close()


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("ipv4:10.1.2.3:4567", "10.1.2.3"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:4567", "2001:db8:1:2::/64"),
        ("ipv6:%5B::1%5D:4567", "::/64"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("", "unknown"),
    ],
)
def test_peers_are_known_by_their_address(peer: str, key: str) -> None:
    assert by_peer(GrpcCall("/a/b", peer, {})) == key


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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LimitInterceptor("often"), "rate"),
        (lambda: LimitInterceptor(None), "nothing to limit"),
        (lambda: LimitInterceptor("1/second", fail="maybe"), "fail must be"),
        (lambda: LimitInterceptor("1/second", key="peer"), "key must be"),
        (lambda: LimitInterceptor("1/second", cost=0), "cost must be"),
        (lambda: AioLimitInterceptor("1/second", methods={"Place": "1/second"}), "is written as"),
        (lambda: AioLimitInterceptor("1/second", methods=["/a/b"]), "methods must map"),
        (lambda: LimitClientInterceptor(slots(3)), "slots are for servers"),
        (lambda: LimitClientInterceptor("1/second", timeout=-1), "timeout"),
        (lambda: LimitClientInterceptor("1/second", honour=0), "honour must be"),
        (lambda: aio_client_interceptors("1/second", key=5), "key must be"),
    ],
)
def test_bad_input_is_said_at_construction(make: Any, said: str) -> None:
    with pytest.raises(ConfigInvalidError, match=said):
        make()


def test_a_limiter_of_your_own_decides() -> None:
    limiter = rate_limit("1/minute")
    with (
        serving(LimitInterceptor(limiter, key=lambda _: "everybody")) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert call(channel, "unary_unary")
    assert limiter.peek("everybody").remaining == 0
