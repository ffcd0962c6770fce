"""gRPC: interceptors that limit the calls of a server, or those of a client, sync and aio.

    server = grpc.server(executor, interceptors=[LimitInterceptor("100/second")])
    server = grpc.aio.server(interceptors=[AioLimitInterceptor("100/second")])

A server refuses with RESOURCE_EXHAUSTED and the time to wait, as `grpc-retry-pushback-ms` and as a
`google.rpc.RetryInfo` in the details of the status. A client waits before it calls, and obeys
both. All four kinds of calls are covered; a stream counts once, when it begins.
"""

from __future__ import annotations

import asyncio as _asyncio
import inspect as _inspect
import logging as _logging
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase as _fits
from typing import Any, NamedTuple
from urllib.parse import unquote as _unquote

from .. import _limited
from ..adapters._headers import retry_delay_ms, retry_trailers
from ..core import _charges, _errors, _validation
from ..core._clock import Clock as _Clock
from ..core._store import Store as _Store
from ..core._waiting import timeout_in_ms as _timeout_in_ms
from ..stores import _opening
from . import _pacing, _who

try:
    import grpc
except ImportError as _error:
    raise _errors.ConfigInvalidError(
        _errors.missing("penstock.integrations.grpc", "grpc", "grpc")
    ) from _error

__all__ = [
    "AioLimitInterceptor",
    "GrpcCall",
    "LimitClientInterceptor",
    "LimitInterceptor",
    "aio_client_interceptors",
    "by_peer",
]

_log = _logging.getLogger("penstock.integrations")


class GrpcCall(NamedTuple):
    """What a key is made of: the `method`, as in `/package.Service/Method`, the `peer` as gRPC
    tells it, which a client does not know, and the `metadata` by names in lower case, texts of one
    name joined by commas."""

    method: str
    peer: str
    metadata: Mapping[str, Any]


def by_peer(call: GrpcCall) -> str:
    """The key by default: the address that calls, without its port; of IPv6 the /64. Behind a proxy
    that is the proxy's: there, take `by_address` with the proxies that are trusted."""
    address = _who.parsed(_reader.peer(call))
    return call.peer or "unknown" if address is None else _who.network_of(address)


class _CallReader:
    """Reads a call as if it were a request of HTTP."""

    def peer(self, call: GrpcCall) -> str | None:
        kind, _, rest = call.peer.partition(":")
        return _unquote(rest) if kind in ("ipv4", "ipv6") else None

    def header(self, call: GrpcCall, name: str) -> str | None:
        value = call.metadata.get(name)
        return value if isinstance(value, str) else None

    def method(self, call: GrpcCall) -> str:
        return "POST"

    def path(self, call: GrpcCall) -> str:
        return call.method

    def route(self, call: GrpcCall) -> str:
        return call.method


_reader = _CallReader()


class _Methods:
    """Which limit counts for a method."""

    def __init__(self, limit: Any, methods: Any, make: Callable[[Any, str], Any]) -> None:
        if methods is not None and not isinstance(methods, Mapping):
            _validation.reject(
                "methods must map methods to limits, such as {'/shop.Orders/Place': '5/second'}, "
                f"not {_validation.shown(methods)}"
            )
        if limit is None and not methods:
            _validation.reject("there is nothing to limit: give a limit for all calls, or methods")
        self._found: dict[str, Any] = {}
        self._rules = []
        for pattern, rate in (methods or {}).items():
            if not isinstance(pattern, str) or not _fits(pattern, "/*/*"):
                _validation.reject(
                    "a method is written as '/package.Service/Method', or with '*' for several, "
                    f"not {_validation.shown(pattern)}"
                )
            self._rules.append((pattern, None if rate is None else make(rate, pattern)))
        self._others = None if limit is None else make(limit, "")

    def of(self, method: str) -> Any:
        """What was made for it; None: it is exempt."""
        for pattern, made in self._rules:
            if _fits(method, pattern):
                return made
        return self._others


class _Rule:
    """The limiter of some methods, and what it is asked."""

    def __init__(self, limiter: Any) -> None:
        self.limiter: Any = limiter
        holds = _limited.holds_slots(limiter)
        # A service's policy is found out to have slots by asking.
        name = "reserve" if holds else "take" if hasattr(limiter, "atake") else "check"
        self.ask: Any = getattr(limiter, name)
        self.aask: Any = getattr(limiter, f"a{name}")

    def keys(self, key: Any, stored: Callable[[str], str]) -> Any:
        """What the limiter is asked by: one key for all limits, or one for each, as they are
        stored. The attributes of a policy are the service's matter."""
        if isinstance(key, str):
            return _limited.for_all(self.limiter, stored(key))
        if not isinstance(key, Mapping) or hasattr(self.limiter, "policy"):
            return key
        return {name: stored(part) for name, part in key.items()}


class _ServerLimit:
    """What both kinds of servers share: who is asked, and what a refusal says."""

    def __init__(
        self,
        limit: _limited.Target | None,
        *,
        methods: Mapping[str, _limited.Target | None] | None = None,
        key: Callable[[GrpcCall], Any] | _who.AddressKey | _who.HeaderKey = by_peer,
        cost: int = 1,
        hash_keys: str | bytes | None = None,
        fail: str = "open",
        store: _Store | str | None = None,
        prefix: str = "grpc",
        clock: _Clock | None = None,
    ) -> None:
        if isinstance(key, (_who.AddressKey, _who.HeaderKey)):
            key = _who.reading(key, _reader, _who.AddressKey(), None)
        if not callable(key):
            _validation.reject(
                "key must be a function of a GrpcCall, or by_address(...), by_header(...) or "
                f"by_api_key(...), not {_validation.shown(key)}"
            )
        self._key: Callable[[GrpcCall], Any] = key
        self._stored = _who.stored_by(_who.require_secret(hash_keys))
        self._cost: int = _validation.require_int("cost", cost, 1)
        self._fail = _validation.require_choice("fail", fail, ("open", "closed", "error"))
        self._store, self._owns_store = _opening.open_for_limiter(store, clock)

        def make(rate: Any, pattern: str) -> _Rule:
            if _limited.is_limiter(rate):
                return _Rule(rate)
            lead = ":".join(filter(None, (prefix, pattern)))
            return _Rule(_limited.limiter_of(rate, self._store, lead, clock))

        try:
            self._methods = _Methods(limit, methods, make)
        except BaseException:
            self.close()
            raise
        self._renewal = _pacing.Renewal()

    def _rule(self, method: str) -> _Rule | None:
        found: _Rule | None = self._methods.of(method)
        return found

    def _call(self, method: str, context: Any) -> GrpcCall:
        metadata: dict[str, Any] = {}
        for name, value in context.invocation_metadata() or ():
            # As lines of HTTP are: what a proxy appends comes last.
            is_list = name in metadata and not name.endswith("-bin")
            metadata[name] = f"{metadata[name]},{value}" if is_list else value
        return GrpcCall(method, context.peer() or "", metadata)

    def _failed(self, error: _errors.StoreUnavailableError) -> tuple[grpc.StatusCode, str] | None:
        """How a call is refused that could not be decided; None: it goes on."""
        _log.warning("a call could not be decided, and is answered by %r: %s", self._fail, error)
        if self._fail == "open":
            return None
        if self._fail == "closed":
            return grpc.StatusCode.RESOURCE_EXHAUSTED, "the limit cannot be looked up right now"
        return grpc.StatusCode.UNAVAILABLE, "the limit cannot be looked up right now"

    def _sync(self, rule: _Rule, method: str, inner: Any) -> Any:
        """The handler, behind the limit."""
        if _limited.is_async(self._key):
            _validation.reject(f"{method} is no async function, so its key cannot be awaited")

        def handle(request: Any, context: Any) -> Any:
            self._admit_sync(rule, method, context)
            return inner(request, context)

        return handle

    def _admit_sync(self, rule: _Rule, method: str, context: Any) -> None:
        keys = rule.keys(self._key(self._call(method, context)), self._stored)
        if keys is None:
            return
        try:
            answer: Any = rule.ask(keys, self._cost)
        except _errors.StoreUnavailableError as error:
            refused = self._failed(error)
            if refused is not None:
                context.abort(*refused)
            return
        if not answer.allowed:
            text, trailers = _refusal(answer)
            context.set_trailing_metadata(trailers)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        if isinstance(answer, _charges.Settling):
            self._renewal.add(answer)
            if not context.add_callback(lambda: self._release(answer)):
                # The call has ended already.
                self._release(answer)

    def _release(self, charge: Any) -> None:
        self._renewal.discard(charge)
        try:
            charge.settle({})
        except _errors.StoreUnavailableError as error:
            _log.warning("a slot could not be given back: %s", error)

    def close(self) -> None:
        """Close the store that was opened here."""
        if self._owns_store:
            self._store.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        if self._owns_store:
            await self._store.aclose()


def _refusal(answer: Any) -> tuple[str, tuple[tuple[str, str | bytes], ...]]:
    wait_ms = max(1, answer.retry_after_ms)
    text = f"the limit is reached; the next call is worth making in {wait_ms} ms"
    return text, retry_trailers(text, wait_ms)


class LimitInterceptor(_ServerLimit, grpc.ServerInterceptor):  # type: ignore[type-arg]
    """For `grpc.server(..., interceptors=[...])`, sync servers.

    `limit` is for all methods together: a rate, a strategy, a mapping of several, a `Limiter`,
    `Limits` or `ServiceLimiter`. `methods` maps methods, such as `"/shop.Orders/Place"` or
    `"/grpc.health.v1.Health/*"`, to limits of their own, or to None, which exempts them; the first
    that fits counts. `key` is a function of the `GrpcCall`, which returns a key, or for several
    limits a mapping of such, or None, which lets the call pass; or what `by_address`, `by_header`
    and `by_api_key` of `penstock.integrations` make, which read the metadata. By default it is the
    address of the peer. `hash_keys` is a secret: keys are stored as HMACs under it. `cost` is what
    a call costs.

    `fail` says what happens to calls while the store is away: `"open"` lets them pass, `"closed"`
    refuses them, `"error"` answers UNAVAILABLE. `store`, `prefix` and `clock` are those of
    `rate_limit`; `close` closes what was opened from a URL.
    """

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Put the limit in front of the handler."""
        handler = continuation(handler_call_details)
        rule = self._rule(handler_call_details.method)
        if handler is None or rule is None:
            return handler
        return _wrapped(handler, lambda inner: self._sync(rule, handler_call_details.method, inner))


class AioLimitInterceptor(_ServerLimit, grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """The twin of `LimitInterceptor` for `grpc.aio.server(interceptors=[...])`, with the same
    options. `key` may be async. Handlers that are plain functions, which such a server runs in
    threads, are limited, too, on stores that serve sync calls."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Put the limit in front of the handler."""
        handler = await continuation(handler_call_details)
        rule = self._rule(handler_call_details.method)
        if handler is None or rule is None:
            return handler
        return _wrapped(
            handler, lambda inner: self._async(rule, handler_call_details.method, inner)
        )

    def _async(self, rule: _Rule, method: str, inner: Any) -> Any:
        """A handler of the same kind: gRPC asks whether it is a generator or a coroutine."""
        if _inspect.isasyncgenfunction(inner):

            async def stream(request: Any, context: Any) -> Any:
                charge = await self._admit(rule, method, context)
                async with _held(charge):
                    async for response in inner(request, context):
                        yield response

            return stream
        if not _limited.is_async(inner):
            return self._sync(rule, method, inner)

        async def handle(request: Any, context: Any) -> Any:
            charge = await self._admit(rule, method, context)
            async with _held(charge):
                return await inner(request, context)

        return handle

    async def _admit(self, rule: _Rule, method: str, context: Any) -> Any:
        """The charge to hold while the call lasts, if there is one."""
        key: Any = self._key(self._call(method, context))
        keys = rule.keys(await key if _inspect.isawaitable(key) else key, self._stored)
        if keys is None:
            return None
        try:
            answer = await rule.aask(keys, self._cost)
        except _errors.StoreUnavailableError as error:
            refused = self._failed(error)
            if refused is not None:
                await context.abort(*refused)
            return None
        if not answer.allowed:
            text, trailers = _refusal(answer)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text, trailers)
        return answer if isinstance(answer, _charges.Settling) else None


class _Nothing:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_error: object) -> None: ...


def _held(charge: Any) -> Any:
    return _Nothing() if charge is None else _pacing.renewed_slots(charge)


_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def _wrapped(handler: Any, wrap: Callable[[Any], Any]) -> Any:
    """A handler of the same kind, with another function."""
    for kind in _KINDS:
        inner = getattr(handler, kind)
        if inner is not None:
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            return make(wrap(inner), handler.request_deserializer, handler.response_serializer)
    return handler


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
        store: _Store | str | None = None,
        prefix: str = "grpc-client",
        clock: _Clock | None = None,
        max_waiters: int | None = None,
    ) -> None:
        if key is not None and not callable(key):
            _validation.reject(
                f"key must be a function of a GrpcCall, not {_validation.shown(key)}"
            )
        if not isinstance(honour, bool):
            _validation.reject(f"honour must be True or False, not {_validation.shown(honour)}")
        self._key = key
        self._timeout_ms = _timeout_in_ms(timeout)
        self._honour = honour
        self._store, self._owns_store = _opening.open_for_limiter(store, clock)
        self._tasks: set[Any] = set()

        def make(rate: Any, pattern: str) -> _pacing.Pacer:
            limits = _pacing.as_limits(rate)
            made = _pacing.Pacer(
                limits,
                dict.fromkeys(limits, "requests"),
                store=self._store,
                clock=clock,
                prefix=":".join(filter(None, (prefix, pattern))),
                max_waiters=max_waiters,
                max_pause_ms=max_pause_ms,
            )
            if _limited.holds_slots(made.limits):
                _validation.reject("slots are for servers: a client limits rates")
            return made

        try:
            self._methods = _Methods(limit, methods, make)
        except BaseException:
            self.close()
            raise

    def _enter(self, details: Any) -> Any:
        found = self._found(details)
        if found is None:
            return None
        pacer, key = found
        return pacer, pacer.enter(key, {}, self._timeout_ms)

    async def _aenter(self, details: Any) -> Any:
        found = self._found(details)
        if found is None:
            return None
        pacer, key = found
        return pacer, await pacer.aenter(key, {}, self._timeout_ms)

    def _watch(self, entered: Any, call: Any) -> Any:
        """Obey the answer when it is there."""
        if entered is not None and self._honour:
            call.add_done_callback(lambda done: self._observe(entered, done))
        return call

    def _awatch(self, entered: Any, call: Any) -> Any:
        """The twin of `watch` for aio."""
        if entered is not None and self._honour:
            call.add_done_callback(lambda done: self._start(self._aobserve(entered, done)))
        return call

    def close(self) -> None:
        """Close the store that was opened here."""
        if self._owns_store:
            self._store.close()

    async def aclose(self) -> None:
        """Wait for what is under way, and close the store that was opened here."""
        await _asyncio.gather(*self._tasks)
        if self._owns_store:
            await self._store.aclose()

    def _found(self, details: Any) -> Any:
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        pacer = self._methods.of(method)
        if pacer is None:
            return None
        if self._key is None:
            return pacer, "all"
        metadata = {item[0]: item[1] for item in details.metadata or ()}
        return pacer, _validation.require_key(self._key(GrpcCall(method, "", metadata)))

    def _observe(self, entered: Any, call: Any) -> None:
        if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            pacer, charge = entered
            pacer.observe(charge, 429, _as_headers(call.trailing_metadata()))

    async def _aobserve(self, entered: Any, call: Any) -> None:
        if await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            pacer, charge = entered
            await pacer.aobserve(charge, 429, _as_headers(await call.trailing_metadata()))

    def _start(self, coroutine: Any) -> None:
        task = _asyncio.ensure_future(coroutine)
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
    which exempts them. `key` is a function of the `GrpcCall` that parts them further. With a
    `timeout` in seconds a call raises `rate_limit_exceeded` as soon as it is plain that it would
    wait for longer; 0 never waits. With `honour`, a server that answers RESOURCE_EXHAUSTED and
    tells when to come back pauses all of them, for at most `max_pause_ms`. Nothing is retried.
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
