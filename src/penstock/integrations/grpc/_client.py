"""The interceptors of clients: a call waits for the limit, and responses are obeyed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc

from ..._arguments import require_plain
from ..._limited import holds_slots
from ...adapters._headers import retry_delay_ms
from ...core._clock import Clock
from ...core._store import Store
from ...core._validation import reject, require_key
from .._pacing import EnteredCall, PacedCalls, Pacer
from ._calls import GrpcCall, MethodLimits

__all__ = ["LimitClientInterceptor", "aio_client_interceptors"]


class _ClientLimit:
    """What both kinds of clients share."""

    def __init__(
        self,
        limit: Any,
        *,
        methods: Mapping[str, Any] | None = None,
        key: Callable[[GrpcCall], str] | None = None,
        timeout: float | None = None,
        honour: bool = True,
        max_pause_ms: int = 3_600_000,
        store: Store | str | None = None,
        prefix: str = "grpc-client",
        clock: Clock | None = None,
        max_waiters: int | None = None,
    ) -> None:
        require_plain("key", key, "a GrpcCall")
        self._key = key
        self._calls = PacedCalls(
            timeout=timeout,
            honour=honour,
            max_pause_ms=max_pause_ms,
            store=store,
            prefix=prefix,
            clock=clock,
            max_waiters=max_waiters,
        )
        self._tasks: set[Any] = set()
        try:
            self._methods = MethodLimits(limit, methods, self._pacer)
        except BaseException:
            self.close()
            raise

    def _pacer(self, rate: Any, pattern: str) -> Pacer:
        made = self._calls.pacer(rate, pattern)
        if holds_slots(made.limits):
            reject("slots are for servers: a client limits rates")
        return made

    def _enter(self, details: Any) -> EnteredCall | None:
        return self._calls.enter(self._found(details))

    async def _aenter(self, details: Any) -> EnteredCall | None:
        return await self._calls.aenter(self._found(details))

    def _watch(self, entered: EnteredCall | None, call: Any) -> Any:
        """Obey the response when it arrives."""
        if entered is not None and self._calls.honour:
            call.add_done_callback(lambda done: self._observe(entered, done))
        return call

    def _awatch(self, entered: EnteredCall | None, call: Any) -> Any:
        """The twin of `watch` for aio."""
        if entered is not None and self._calls.honour:
            call.add_done_callback(lambda done: self._start(self._aobserve(entered, done)))
        return call

    def close(self) -> None:
        """Close the store that was opened here."""
        self._calls.close()

    async def aclose(self) -> None:
        """Wait for pending work, and close the store that was opened here."""
        await asyncio.gather(*self._tasks)
        await self._calls.aclose()

    def _found(self, details: Any) -> tuple[Pacer, str] | None:
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        pacer: Pacer | None = self._methods.of(method)
        if pacer is None:
            return None
        if self._key is None:
            return pacer, "all"
        metadata = {item[0]: item[1] for item in details.metadata or ()}
        return pacer, require_key(self._key(GrpcCall(method, "", metadata)))

    def _observe(self, entered: EnteredCall, call: Any) -> None:
        if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._calls.observe(entered, 429, _as_headers(call.trailing_metadata()))

    async def _aobserve(self, entered: EnteredCall, call: Any) -> None:
        if await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            await self._calls.aobserve(entered, 429, _as_headers(await call.trailing_metadata()))

    def _start(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _as_headers(trailers: Iterable[Any] | None) -> dict[str, str]:
    wait_ms = retry_delay_ms(trailers)
    return {} if wait_ms is None else {"retry-after-ms": str(wait_ms)}


class LimitClientInterceptor(
    _ClientLimit,
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """For `grpc.intercept_channel(channel, ...)`: calls wait for the limit, in the order in which
    they came, across all processes that share the store.

    `limit` is for all methods together, `methods` maps methods to limits of their own, or to None,
    which exempts them. `key` is a function of the `GrpcCall`, for separate counts. With a `timeout`
    in seconds a call raises `rate_limit_exceeded` as soon as it is known that the wait would be
    longer; 0 never waits. With `honour`, a server that answers RESOURCE_EXHAUSTED with a time to
    wait pauses all calls of the limit, for at most `max_pause_ms`. Nothing is retried.
    """

    def _intercept(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        entered = self._enter(client_call_details)
        return self._watch(entered, continuation(client_call_details, request))

    intercept_unary_unary: Any = _intercept
    """Wait, call, and obey what the answer says of limits."""
    intercept_unary_stream: Any = _intercept
    """The same."""
    intercept_stream_unary: Any = _intercept
    """The same."""
    intercept_stream_stream: Any = _intercept
    """The same."""


class _AioInterceptor:
    def __init__(self, limit: _ClientLimit) -> None:
        self._limit = limit

    async def _intercept(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        entered = await self._limit._aenter(client_call_details)
        return self._limit._awatch(entered, await continuation(client_call_details, request))

    async def aclose(self) -> None:
        """Close the store that was opened for all four."""
        await self._limit.aclose()


class _AioUnaryUnary(_AioInterceptor, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_unary: Any = _AioInterceptor._intercept


class _AioUnaryStream(_AioInterceptor, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_stream: Any = _AioInterceptor._intercept


class _AioStreamUnary(_AioInterceptor, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_unary: Any = _AioInterceptor._intercept


class _AioStreamStream(_AioInterceptor, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_stream: Any = _AioInterceptor._intercept


def aio_client_interceptors(limit: Any, **options: Any) -> list[Any]:
    """The twins of `LimitClientInterceptor`, one for each kind of call, for
    `grpc.aio.insecure_channel(target, interceptors=aio_client_interceptors("10/second"))`. They
    share the limit and take the same options; `aclose` of any of them closes what was opened from a
    URL."""
    shared = _ClientLimit(limit, **options)
    kinds: tuple[Any, ...] = (_AioUnaryUnary, _AioUnaryStream, _AioStreamUnary, _AioStreamStream)
    return [kind(shared) for kind in kinds]
