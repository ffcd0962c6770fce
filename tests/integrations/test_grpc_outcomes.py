"""What a call of gRPC is charged may depend on the status that it ends with."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from penstock import ConfigInvalidError, ManualClock, MemoryStore, fixed_window, rate_limit, slots
from penstock.client import ServiceLimiter
from penstock.integrations.grpc import AioLimitInterceptor, LimitInterceptor
from tests.client.serving import TOKEN, RunningService
from tests.integrations.grpc_echo import KINDS, SERVICE, aio_serving, all_kinds, call, serving
from tests.support.helpers import NOW

SERVERS = {"sync": (LimitInterceptor, serving), "aio": (AioLimitInterceptor, aio_serving)}
both_servers = pytest.mark.parametrize("server", SERVERS)

ENDS = {
    "raised": grpc.StatusCode.UNKNOWN,
    "set": grpc.StatusCode.NOT_FOUND,
    "aborted": grpc.StatusCode.NOT_FOUND,
    "fine": grpc.StatusCode.OK,
}


def end(context: Any) -> str:
    """How a call is asked to end."""
    return str(dict(context.invocation_metadata()).get("end", "fine"))


def plain(kind: str) -> Any:
    """A handler that answers and ends as it is told to."""

    def unary(request: Any, context: Any) -> bytes:
        asked = end(context)
        if asked == "aborted":
            context.abort(grpc.StatusCode.NOT_FOUND, "not here")
        if asked == "raised":
            raise KeyError("not here")
        if asked == "set":
            context.set_code(grpc.StatusCode.NOT_FOUND)
        return b"x"

    def stream(request: Any, context: Any) -> Iterator[bytes]:
        yield b"first"
        yield unary(request, context)

    return stream if kind.endswith("stream") else unary


def awaited(kind: str) -> Any:
    """The same as a coroutine, or as an async generator."""

    async def unary(request: Any, context: Any) -> bytes:
        asked = end(context)
        if asked == "aborted":
            await context.abort(grpc.StatusCode.NOT_FOUND, "not here")
        if asked == "raised":
            raise KeyError("not here")
        if asked == "set":
            context.set_code(grpc.StatusCode.NOT_FOUND)
        return b"x"

    async def stream(request: Any, context: Any) -> Any:
        yield b"first"
        yield await unary(request, context)

    async def writing(request: Any, context: Any) -> None:
        await context.write(await unary(request, context))

    return {"unary_stream": stream, "stream_stream": writing}.get(kind, unary)


def started(server: str, limit: Any, **options: Any) -> tuple[Any, Any]:
    """An interceptor, and what serves behind it. `plain` is an aio server with plain handlers."""
    make, serve = SERVERS["sync" if server == "sync" else "aio"]
    interceptor = make(limit, key=lambda call: call.method, **options)
    handler = awaited if server == "aio" else plain
    return interceptor, serve(interceptor, {kind: handler(kind) for kind in KINDS})


def code_of(channel: Any, kind: str, asked: str) -> grpc.StatusCode:
    try:
        call(channel, kind, (("end", asked),))
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("server", [*SERVERS, "plain"])
@all_kinds
def test_what_is_charged_can_depend_on_the_status(server: str, kind: str) -> None:
    """Set, aborted or raised: everything is given back that is not charged."""
    store, seen = MemoryStore(clock=ManualClock(NOW)), []

    def charge_when(code: grpc.StatusCode) -> bool:
        seen.append(code)
        return code is grpc.StatusCode.OK

    limiter = rate_limit(fixed_window(1, 60_000), store=store, clock=ManualClock(NOW))
    _, running = started(server, limiter, charge_when=charge_when)
    with running as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ends = dict(ENDS)
        if server == "plain" and kind.endswith("stream"):
            # In an aio server, a plain generator that aborts never ends, limited or not.
            del ends["aborted"]
        deadline = time.monotonic() + 30
        for asked, code in ends.items():
            assert code_of(channel, kind, asked) is code
            # An aio server sends the status of an abort while its handler still runs.
            left = 0 if asked == "fine" else 1
            while limiter.peek(f"/{SERVICE}/{kind}").remaining != left:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert code_of(channel, kind, "fine") is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert seen == [*ends.values()]


@both_servers
def test_a_call_that_its_client_gives_up_ends_as_cancelled(server: str) -> None:
    """Before it has answered, and in the middle of a stream; what it held is free."""
    seen: list[grpc.StatusCode] = []
    limit = {"flight": slots(1, ttl_ms=60_000), "rate": fixed_window(1, 60_000)}
    make, serve = SERVERS["sync" if server == "sync" else "aio"]
    deadline = time.monotonic() + 30

    def plainly(request: Any, context: Any) -> Iterator[bytes]:
        yield b"first"
        while end(context) == "left" and context.is_active():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield b"second"

    async def awaitedly(request: Any, context: Any) -> Any:
        yield b"first"
        if end(context) == "left":
            await asyncio.sleep(30)
        yield b"second"

    def charge_when(code: grpc.StatusCode) -> bool:
        seen.append(code)
        return code is grpc.StatusCode.OK

    interceptor = make(limit, key=lambda call: "k", charge_when=charge_when)
    functions = {"unary_stream": awaitedly if server == "aio" else plainly}
    with (
        serve(interceptor, functions) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        method = channel.unary_stream(f"/{SERVICE}/unary_stream")
        answers = method(b"x", metadata=(("end", "left"),), timeout=30)
        assert next(answers) == b"first"
        assert code_of(channel, "unary_stream", "fine") is grpc.StatusCode.RESOURCE_EXHAUSTED
        answers.cancel()
        while code_of(channel, "unary_stream", "fine") is not grpc.StatusCode.OK:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert seen == [grpc.StatusCode.CANCELLED, grpc.StatusCode.OK]


def test_a_stream_that_is_given_up_has_ended_before_its_slot_is_free() -> None:
    """Wherever the handler of an aio server is in its work."""
    happened: list[str] = []
    settled = threading.Event()

    async def endless(request: Any, context: Any) -> Any:
        try:
            while True:
                yield b"x" * 100_000
        finally:
            happened.append("ended")

    def charge_when(code: grpc.StatusCode) -> bool:
        happened.append("settled")
        settled.set()
        return True

    interceptor = AioLimitInterceptor({"flight": slots(1)}, charge_when=charge_when)
    with (
        aio_serving(interceptor, {"unary_stream": endless}) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        answers = channel.unary_stream(f"/{SERVICE}/unary_stream")(b"x", timeout=30)
        next(answers)
        answers.cancel()
        assert settled.wait(30)
    assert happened == ["ended", "settled"]


@both_servers
def test_a_service_gives_back_what_is_not_charged(server: str) -> None:
    """By its charge, slots included, of which nobody has told that the policy has any."""
    with RunningService(ManualClock(NOW)) as service:
        options: Any = {"token": TOKEN, "timeout_ms": 10_000}
        limiter = ServiceLimiter(service.url("http"), "key", **options)
        make, serve = SERVERS[server]
        interceptor = make(
            limiter,
            key=lambda call: {"key": "k"},
            charge_when=lambda code: code is grpc.StatusCode.OK,
        )
        handler = awaited if server == "aio" else plain
        functions = {kind: handler(kind) for kind in KINDS}
        with (
            serve(interceptor, functions, closing=[limiter]) as port,
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            asked = ["raised", "fine", "set", "fine", "fine"]
            codes = [code_of(channel, "unary_unary", each) for each in asked]
    ok, over = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED
    assert codes == [grpc.StatusCode.UNKNOWN, ok, grpc.StatusCode.NOT_FOUND, ok, over]


@both_servers
def test_a_charge_when_that_fails_leaves_the_charge(
    server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the call as it was: its answer is there already."""

    def broken(code: grpc.StatusCode) -> bool:
        raise ValueError(code)

    _, running = started(server, fixed_window(1, 60_000), charge_when=broken)
    with running as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        codes = [code_of(channel, "unary_unary", "fine") for _ in range(2)]
    assert codes == [grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert "charge_when failed" in caplog.text


@both_servers
def test_what_a_call_costs_can_depend_on_the_call(server: str) -> None:
    """A call of cost 0 is never denied; an aio server may wait for the cost."""

    def cost(call: Any) -> int:
        return int(call.metadata["units"])

    async def acost(call: Any) -> int:
        return cost(call)

    limit = fixed_window(3, 60_000)
    _, running = started(server, limit, cost=acost if server == "aio" else cost)
    with running as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

        def admitted(units: int) -> bool:
            try:
                return bool(call(channel, "unary_unary", (("units", str(units)),)))
            except grpc.RpcError:
                return False

        assert [admitted(units) for units in (0, 2, 2, 0, 1, 0, 1)] == [
            *(True, True, False),
            *(True, True, True, False),
        ]


def test_mistakes_about_outcomes_are_told_at_construction() -> None:
    with pytest.raises(ConfigInvalidError, match="function of a StatusCode"):
        LimitInterceptor("1/second", charge_when=grpc.StatusCode.OK)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalidError, match="cost"):
        AioLimitInterceptor("1/second", cost=0)

    async def awaited(code: grpc.StatusCode) -> bool:
        return False

    with pytest.raises(ConfigInvalidError, match="a plain function of a StatusCode"):
        AioLimitInterceptor("1/second", charge_when=awaited)
