"""A gRPC service of all four kinds of calls, sync and async."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

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
def serving(
    interceptor: Any, functions: dict[str, Any] = SYNC, closing: Iterable[Any] = ()
) -> Iterator[int]:
    with ThreadPoolExecutor(8) as executor:
        server = grpc.server(executor, interceptors=[interceptor] if interceptor else [])
        server.add_generic_rpc_handlers((handlers(functions),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()
            for limiter in closing:
                limiter.close()


@contextlib.contextmanager
def aio_serving(
    interceptor: Any, functions: dict[str, Any] = AIO, closing: Iterable[Any] = ()
) -> Iterator[int]:
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
        for limiter in closing:
            await limiter.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(20)
    try:
        yield ports[0]
    finally:
        end.set()
        thread.join()


def call(channel: Any, kind: str, metadata: Any = None) -> list[bytes]:
    """What comes back for one message, or for one."""
    method = getattr(channel, kind)(f"/{SERVICE}/{kind}")
    sent: Any = iter([b"x"]) if kind.startswith("stream") else b"x"
    answer = method(sent, metadata=metadata, timeout=30)
    return list(answer) if kind.endswith("stream") else [answer]
