"""Interceptors for gRPC, on real servers and channels: sync and aio, all four kinds of calls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status

from penstock import (
    ConfigInvalidError,
    Limit,
    ManualClock,
    MemoryStore,
    Store,
    StoreUnavailableError,
    fixed_window,
    rate_limit,
    slots,
)
from penstock.client import ServiceLimiter
from penstock.integrations import by_address, by_header
from penstock.integrations.grpc import (
    AioLimitInterceptor,
    GrpcCall,
    LimitClientInterceptor,
    LimitInterceptor,
    aio_client_interceptors,
    by_peer,
    verdict_of,
)
from penstock.integrations.grpc._server import _answers
from tests.client.serving import TOKEN, RunningService
from tests.integrations.grpc_echo import (
    SERVICE,
    aio_serving,
    all_kinds,
    call,
    echo,
    echo_out,
    serving,
)
from tests.servers import Valkey, require
from tests.stores.redis.live import PATIENT_MS, new_key, url_of
from tests.support.helpers import NOW

SERVERS = {"sync": (LimitInterceptor, serving), "aio": (AioLimitInterceptor, aio_serving)}
both_servers = pytest.mark.parametrize("server", SERVERS)


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
    assert "in 60 s" in error.details()
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
        for kind in ("unary_unary", "unary_stream"):
            with pytest.raises(grpc.RpcError) as caught:
                call(channel, kind)
            error: Any = caught.value
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "grpc-retry-pushback-ms" in dict(error.trailing_metadata())


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


def test_an_outage_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """And not for every call."""
    limit = LimitInterceptor("1/minute", store=Away())
    with serving(limit) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(3):
            assert call(channel, "unary_unary")
    assert [record.getMessage() for record in caplog.records] == [
        "calls cannot be decided, and are answered by 'open': gone"
    ]


@both_servers
def test_a_key_may_be_a_number_or_nothing_which_stands_for_the_address(server: str) -> None:
    """As in a web app."""

    def key(told: GrpcCall) -> Any:
        user = told.metadata.get("user", "")
        return int(user) if user else ""

    make, serve = SERVERS[server]
    limiter = rate_limit("1/minute")
    with (
        serve(make(limiter, key=key)) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert call(channel, "unary_unary", (("user", "7"),))
        assert call(channel, "unary_unary")
    assert [limiter.peek(each).remaining for each in ("7", "127.0.0.1")] == [0, 0]


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
        ("ipv6:[::ffff:10.1.2.3]:4567", "10.1.2.3"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4567", "fe80::/64"),
        ("ipv6:nonsense", "ipv6:nonsense"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("", "unknown"),
    ],
)
def test_peers_are_known_by_their_address(peer: str, key: str) -> None:
    assert by_peer(GrpcCall("/a/b", peer, {})) == key


@both_servers
def test_who_calls_is_told_as_to_a_web_app(server: str) -> None:
    """By proxies that are trusted, or by metadata; hashed, and of any length."""
    make, serve = SERVERS[server]

    def admitted(limit: Any, *calls: tuple[tuple[str, str], ...]) -> list[bool]:
        found = []
        with serve(limit) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for metadata in calls:
                with contextlib.suppress(grpc.RpcError):
                    call(channel, "unary_unary", metadata)
                    found.append(True)
                    continue
                found.append(False)
        return found

    def forwarded(*lines: str) -> tuple[tuple[str, str], ...]:
        return tuple(("x-forwarded-for", line) for line in lines)

    seen, other = "198.51.100.7", "198.51.100.8"
    behind = make("1/day", key=by_address(["127.0.0.0/8"]))
    calls = forwarded(seen), forwarded("1.1.1.1", seen), forwarded(seen, other)
    assert admitted(behind, *calls) == [True, False, True]
    users = [(("x-user", name * 2_000),) for name in ("a", "b", "a")]
    assert admitted(make("1/day", key=by_header("x-user")), *users) == [True, True, False]
    store = MemoryStore()
    hashed = make("1/day", key=by_header("x-user"), hash_keys="a secret of ours", store=store)
    assert admitted(hashed, *[(("x-user", "alice"),)] * 2) == [True, False]
    assert rate_limit("1/day", store=store, prefix="grpc:*").peek("key alice").allowed
    nobody = make("1/day", key=lambda call: call.metadata.get("x-user"))
    assert admitted(nobody, (), (), (("x-user", "a"),), (("x-user", "a"),)) == [
        *(True, True),
        *(True, False),
    ]


@both_servers
def test_a_long_wait_is_in_days(server: str) -> None:
    make, serve = SERVERS[server]
    limit = make(fixed_window(1, 30 * 86_400_000, anchor="first"), clock=ManualClock(NOW))
    with serve(limit) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert call(channel, "unary_unary")
        with pytest.raises(grpc.RpcError) as caught:
            call(channel, "unary_unary")
    error: Any = caught.value
    assert "in 30 days" in error.details()
    assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == str(30 * 86_400_000)


def told(context: Any) -> bytes:
    answer = verdict_of(context)
    return b"no limit" if answer is None else str(answer.degraded).encode()


def plain(request: bytes, context: Any) -> bytes:
    return told(context)


def plain_stream(request: bytes, context: Any) -> Iterator[bytes]:
    yield told(context)
    yield told(context)


async def awaited(request: bytes, context: Any) -> bytes:
    return told(context)


async def awaited_stream(request: bytes, context: Any) -> Any:
    yield told(context)
    yield told(context)


@pytest.mark.parametrize("limit", ["5/minute", {"rate": "5/minute", "at_once": slots(3)}])
@pytest.mark.parametrize(
    ("server", "handlers"),
    [
        ("sync", (plain, plain_stream)),
        ("aio", (awaited, awaited_stream)),
        ("aio", (plain, plain_stream)),
    ],
    ids=["sync", "aio", "aio-plain"],
)
def test_a_handler_sees_that_its_call_was_decided_by_the_fail_mode(
    server: str, handlers: Any, limit: Any
) -> None:
    require("valkey")
    make, serve = SERVERS[server]
    with Valkey() as valkey:
        interceptor = make(
            limit, methods={"/*/stream_unary": None}, store=f"{valkey.url}?timeout_ms=500"
        )
        unary, stream = handlers
        functions = {"unary_unary": unary, "unary_stream": stream, "stream_unary": unary}
        with (
            serve(interceptor, functions, [interceptor]) as port,
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            assert call(channel, "unary_unary") == [b"None"]
            assert call(channel, "unary_stream") == [b"None", b"None"]
            valkey.kill()
            assert call(channel, "unary_unary") == [b"open"]
            assert call(channel, "unary_stream") == [b"open", b"open"]
            assert call(channel, "stream_unary") == [b"no limit"]
    assert _answers == {}


async def _later(_call: Any) -> Any:
    return "k"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LimitInterceptor("often"), "rate"),
        (lambda: LimitInterceptor(None), "nothing to limit"),
        (lambda: LimitInterceptor("1/second", fail="maybe"), "fail must be"),
        (lambda: LimitInterceptor("1/second", key="peer"), "key must be"),
        (lambda: LimitInterceptor("1/second", cost=0), "cost must be"),
        (lambda: LimitInterceptor("1/second", key=_later), "key must be a plain function"),
        (lambda: LimitInterceptor("1/second", cost=_later), "cost must be a plain function"),
        (lambda: LimitClientInterceptor("1/second", key=_later), "key must be a plain function"),
        (lambda: aio_client_interceptors("1/second", key=_later), "key must be a plain function"),
        (lambda: LimitInterceptor("1/second", hash_keys="short"), "at least 16 bytes"),
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


@both_servers
def test_a_service_decides(server: str) -> None:
    """By a key, or by attributes; slots of its policy are held until the call ends."""
    make, serve = SERVERS[server]
    with RunningService() as service:
        url = service.url("http")
        one = ServiceLimiter(url, "one", token=TOKEN, timeout_ms=10_000)
        several = ServiceLimiter(url, "key", token=TOKEN, timeout_ms=10_000)
        methods = {"/*/stream_stream": several}
        limit = make(
            one,
            methods=methods,
            key=lambda call: {"key": "k"} if call.method.endswith("stream_stream") else "k",
        )
        with (
            serve(limit, closing=[one, several]) as port,
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            assert [call(channel, "unary_unary") for _ in range(2)] == [[b"x"]] * 2
            with pytest.raises(grpc.RpcError) as caught:
                call(channel, "unary_unary")
            go_on = threading.Event()

            def requests() -> Iterator[bytes]:
                yield b"x"
                go_on.wait(20)

            under_way = channel.stream_stream(f"/{SERVICE}/stream_stream")(requests(), timeout=30)
            assert next(under_way) == b"x"
            assert several.peek({"key": "k"}).violated == ("flight",)
            go_on.set()
            assert list(under_way) == []
            deadline = time.monotonic() + 20
            while not several.peek({"key": "k"}).limits["flight"].allowed:
                assert time.monotonic() < deadline, "the slot was not given back"
                time.sleep(0.02)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
