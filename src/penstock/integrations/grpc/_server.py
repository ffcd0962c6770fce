"""The interceptors of servers. A call is decided before its handler runs. When its status is known,
slots are given back, and other charges too if `charge_when` says so."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

import grpc

from ..._arguments import require_plain
from ..._limited import Target, for_all, holds_slots, is_async, is_limiter, limiter_of
from ...adapters._headers import retry_trailers
from ...core._charges import Settling
from ...core._clock import Clock
from ...core._decision import Decision, DegradedDecision
from ...core._durations import wait_in_words
from ...core._errors import OverloadedError, StoreUnavailableError
from ...core._renewing import ahold, hold
from ...core._store import Store
from ...core._validation import reject, require_choice, require_int, shown
from ...core._verdict import Verdict
from ...stores._opening import open_for_limiter
from .._ruling import OutageLog, says_yes
from .._who import AddressKey, HeaderKey, reading, require_secret, stored_by
from ._calls import READER, GrpcCall, MethodLimits, by_peer

__all__ = ["AioLimitInterceptor", "LimitInterceptor", "verdict_of"]

_log = logging.getLogger("penstock.integrations")

_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_OK, _UNKNOWN, _CANCELLED = (
    grpc.StatusCode.OK,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
)
_CODES = {code.value[0]: code for code in grpc.StatusCode}


# The answers of limits, by the id of the context that a handler was given, until the call ends.
# Contexts of aio servers take no attributes and no weak references.
_answers: dict[int, Decision | Verdict] = {}


def verdict_of(context: Any) -> Decision | Verdict | None:
    """The answer of the limits to the call of a handler that was given this context: a `Decision`
    of one limit, a `Verdict` of several. `degraded` is the fail mode that decided while the store
    was away. None if the call has no limit, and after its end."""
    return _answers.get(id(context))


def _note(context: Any, answer: Any) -> None:
    if isinstance(answer, Settling):
        answer = answer.decision if answer.verdict is None else answer.verdict
    _answers[id(context)] = answer


def _forget(context: Any) -> None:
    _answers.pop(id(context), None)


class _MethodLimiter:
    """The limiter of some methods, and the keys and costs of their calls."""

    def __init__(self, limiter: Any, gives_back: bool) -> None:
        self.limiter: Any = limiter
        holds = gives_back or holds_slots(limiter)
        # Whether a policy of a service has slots is known from its first answer.
        name = "reserve" if holds else "take" if hasattr(limiter, "atake") else "check"
        self._ask: Any = getattr(limiter, name)
        self._aask: Any = getattr(limiter, f"a{name}")

    def keys(self, key: Any, stored: Callable[[str], str]) -> Any:
        """The keys as they are stored: one for all limits, or one for each. Attributes of a policy
        are passed to the service unchanged."""
        if isinstance(key, str):
            return for_all(self.limiter, stored(key))
        if not isinstance(key, Mapping) or hasattr(self.limiter, "policy"):
            return key
        return {name: stored(part) for name, part in key.items()}

    def ask(self, keys: Any, cost: Any) -> Any:
        """Check or reserve."""
        return self._ask(keys, cost)

    async def aask(self, keys: Any, cost: Any) -> Any:
        """The awaitable twin of `ask`."""
        return await self._aask(keys, cost)

    def let_pass(self) -> Decision:
        """The decision of the fail mode "open"."""
        strategy = getattr(self.limiter, "strategy", None)
        limit: int = getattr(strategy, "limit", 0)
        return DegradedDecision.by("open", limit, self.limiter.clock.now())


class _ServerLimit:
    """Shared by both kinds of servers: the limits, and the form of a refusal."""

    _awaits = True

    def __init__(
        self,
        limit: Target | None,
        *,
        methods: Mapping[str, Target | None] | None = None,
        key: Callable[[GrpcCall], Any] | AddressKey | HeaderKey = by_peer,
        cost: int | Callable[[GrpcCall], Any] = 1,
        charge_when: Callable[[grpc.StatusCode], Any] | None = None,
        hash_keys: str | bytes | None = None,
        fail: str = "open",
        store: Store | str | None = None,
        prefix: str = "grpc",
        clock: Clock | None = None,
    ) -> None:
        if isinstance(key, (AddressKey, HeaderKey)):
            key = reading(key, READER, AddressKey(), None)
        if not callable(key):
            reject(
                "key must be a function of a GrpcCall, or by_address(...), by_header(...) or "
                f"by_api_key(...), not {shown(key)}"
            )
        if not self._awaits:
            require_plain("key", key, "a GrpcCall")
            require_plain("cost", cost if callable(cost) else None, "a GrpcCall")
        require_plain("charge_when", charge_when, "a StatusCode")
        self._key: Callable[[GrpcCall], Any] = key
        self._stored = stored_by(require_secret(hash_keys))
        self._cost = cost if callable(cost) else require_int("cost", cost, 1)
        self._charge_when = charge_when
        self._fail = require_choice("fail", fail, ("open", "closed", "error"))
        self._outages = OutageLog()
        self._store, self._owns_store = open_for_limiter(store, clock)

        def make(rate: Any, pattern: str) -> _MethodLimiter:
            if not is_limiter(rate):
                # The limit of all other methods has a name too, so that no key of it is one of a
                # method's limit.
                lead = ":".join(filter(None, (prefix, pattern or "*")))
                rate = limiter_of(rate, self._store, lead, clock)
            return _MethodLimiter(rate, charge_when is not None)

        try:
            self._methods = MethodLimits(limit, methods, make)
        except BaseException:
            self.close()
            raise

    def _limiter(self, method: str) -> _MethodLimiter | None:
        found: _MethodLimiter | None = self._methods.of(method)
        return found

    def _call(self, method: str, context: Any) -> GrpcCall:
        metadata: dict[str, Any] = {}
        for name, value in context.invocation_metadata() or ():
            # As lines of an HTTP header: a value that a proxy appends comes last.
            is_list = name in metadata and not name.endswith("-bin")
            metadata[name] = f"{metadata[name]},{value}" if is_list else value
        return GrpcCall(method, context.peer() or "", metadata)

    def _failed(self, error: StoreUnavailableError) -> _Refusal | None:
        """The refusal of a call that could not be decided; None: the call continues."""
        if isinstance(error, OverloadedError):
            text = "more is asked than the store of the limit answers in time"
            return _Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text, ())
        self._outages.warn("calls cannot be decided, and are answered by %r: %s", self._fail, error)
        if self._fail == "open":
            return None
        code = grpc.StatusCode.UNAVAILABLE
        if self._fail == "closed":
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
        return _Refusal(code, "the limit cannot be looked up right now", ())

    def _sync(self, limiter: _MethodLimiter, method: str, inner: Any, is_stream: bool) -> Any:
        """The handler with the limit in front."""
        if is_async(self._key) or is_async(self._cost):
            reject(f"{method} is no async function, so its key and cost cannot be awaited")
        ask = partial(self._ask, limiter, method)
        serve = self._stream if is_stream else self._unary
        return lambda request, context: serve(ask, inner, request, _told_by(context))

    def _unary(self, ask: Any, inner: Any, request: Any, context: Any) -> Any:
        """The response of a unary handler."""
        answer = ask(context)
        if isinstance(answer, _Refusal):
            context.set_trailing_metadata(answer.trailers)
            context.abort(answer.code, answer.text)
        code = _CANCELLED
        try:
            response = inner(request, context)
            code = _status(context, _OK)
        except Exception:
            code = _status(context, _UNKNOWN)
            raise
        finally:
            self._end(answer, code, context)
        return response

    def _stream(self, ask: Any, inner: Any, request: Any, context: Any) -> Iterator[Any]:
        """The responses of a streaming handler. The limit is decided when they are read: an aio
        server calls plain handlers in its event loop, and reads their responses in a thread. There
        a call cannot be aborted, so a refusal is set as the status of an empty stream."""
        answer = ask(context)
        if isinstance(answer, _Refusal):
            context.set_trailing_metadata(answer.trailers)
            context.set_code(answer.code)
            context.set_details(answer.text)
            return
        code = _CANCELLED
        try:
            yield from inner(request, context)
            code = _status(context, _OK)
        except Exception:
            code = _status(context, _UNKNOWN)
            raise
        finally:
            self._end(answer, code, context)

    def _ask(self, limiter: _MethodLimiter, method: str, context: Any) -> Any:
        """The charge to hold while the call lasts, if there is one, or a refusal."""
        call = self._call(method, context)
        keys = limiter.keys(_known(self._key(call), call), self._stored)
        if keys is None:
            return None
        cost = self._cost(call) if callable(self._cost) else self._cost
        if cost == 0:
            return None  # a look never denies, and a call shows no figures
        try:
            answer = limiter.ask(keys, cost)
            found = _found(answer)
        except StoreUnavailableError as error:
            found = self._failed(error)
            answer = limiter.let_pass()
        if isinstance(found, _Refusal):
            return found
        if found is not None:
            hold(found)
        _note(context, answer)
        return found

    def _end(self, charge: Any, code: grpc.StatusCode, context: Any) -> None:
        """Settle a call whose handler has ended, unless it was settled before."""
        _forget(context)
        if charge is None or not charge.is_open:
            return
        try:
            if self._is_charged(code):
                charge.settle({})
            else:
                charge.cancel()
        except StoreUnavailableError as error:
            _log.warning(_NOT_SETTLED, error)

    async def _aend(self, charge: Any, code: grpc.StatusCode) -> None:
        """The awaitable twin of `_end`."""
        try:
            await (charge.asettle({}) if self._is_charged(code) else charge.acancel())
        except StoreUnavailableError as error:
            _log.warning(_NOT_SETTLED, error)

    def _is_charged(self, code: grpc.StatusCode) -> bool:
        return self._charge_when is None or says_yes(self._charge_when, code)

    def close(self) -> None:
        """Close the store that was opened here."""
        if self._owns_store:
            self._store.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        if self._owns_store:
            await self._store.aclose()


def _known(key: Any, call: GrpcCall) -> Any:
    """The key that a function returned: numbers become text, an empty one is the address."""
    if type(key) is int:
        return str(key)
    return by_peer(call) if key == "" else key


_NOT_SETTLED = "what a call held could not be given back: %s"


class _Refusal(NamedTuple):
    code: grpc.StatusCode
    text: str
    trailers: tuple[tuple[str, str | bytes], ...]


def _found(answer: Any) -> Settling | _Refusal | None:
    """The result of a limiter's answer: a charge to hold, a refusal, or neither."""
    if answer.allowed:
        return answer if isinstance(answer, Settling) else None
    wait_ms = max(1, answer.retry_after_ms)
    soonest = wait_in_words(wait_ms, exact=True)
    text = f"the limit is reached; the next call is worth making in {soonest}"
    trailers = retry_trailers(text, wait_ms)
    return _Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text, trailers)


def _status(context: Any, default: grpc.StatusCode) -> grpc.StatusCode:
    """The status of a call that has ended: the one that its handler has set, also by `abort`, or
    else the one that gRPC derives. CANCELLED if the client has disconnected."""
    told: Any = context.code()
    # An aio server has it as a number.
    code = _CODES.get(told, _UNKNOWN) if isinstance(told, int) else told or _OK
    if code is _OK:
        code = default
    return _CANCELLED if code is _OK and _has_left(context) else code


def _told_by(context: Any) -> Any:
    """A context that reports the status that was set in it."""
    return context if hasattr(context, "code") else _NotedContext(context)


class _NotedContext:
    """The context of a plain handler in an aio server, which also has the status that was set;
    gRPC's own context does not report it."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._code: Any = None

    def code(self) -> Any:
        return self._code

    def set_code(self, code: Any) -> None:
        self._code = code
        self._context.set_code(code)

    def abort(self, code: Any, *more: Any) -> None:
        self._code = code
        self._context.abort(code, *more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _has_left(context: Any) -> bool:
    """Whether the client has disconnected, if the context reports it: in a sync server, or in
    coroutines of an aio server."""
    if hasattr(context, "is_active"):
        return not context.is_active()
    return hasattr(context, "cancelled") and bool(context.cancelled())


class LimitInterceptor(_ServerLimit, grpc.ServerInterceptor):  # type: ignore[type-arg]
    """For `grpc.server(..., interceptors=[...])`, sync servers.

    `limit` is for all methods together: a rate, a strategy, a mapping of several, a `Limiter`,
    `Limits` or `ServiceLimiter`. `methods` maps methods, such as `"/shop.Orders/Place"` or
    `"/grpc.health.v1.Health/*"`, to limits of their own, or to None, which exempts them; the first
    match applies. `key` is by default the address of the peer. It can be a function of the
    `GrpcCall` that returns a key, a mapping of keys for several limits, an empty string for the
    address, or None to let the call pass; or the result of `by_address`, `by_header` or
    `by_api_key` of `penstock.integrations`, which read the metadata. `hash_keys` is a secret: keys
    are stored as HMACs under it. `cost` is the cost of a call, a number or a function of the
    `GrpcCall`; a call of cost 0 always passes. With `charge_when`, a function of the
    `grpc.StatusCode` that a call ends with, a call is charged while it runs, and the charge is
    given back if the function returns False; if the client disconnects, the status is CANCELLED.

    `fail` is the fail mode: while the store is away, `"open"` lets calls pass, `"closed"` refuses
    them, `"error"` answers UNAVAILABLE. `store`, `prefix` and `clock` are those of
    `rate_limit`; `close` closes what was opened from a URL.
    """

    _awaits = False

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Put the limit in front of the handler."""
        handler = continuation(handler_call_details)
        limiter = self._limiter(handler_call_details.method)
        if handler is None or limiter is None:
            return handler
        method = handler_call_details.method
        return _wrapped(handler, lambda *inner: self._sync(limiter, method, *inner))


class AioLimitInterceptor(_ServerLimit, grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """The twin of `LimitInterceptor` for `grpc.aio.server(interceptors=[...])`, with the same
    options. `key` and `cost` may be async. Handlers that are plain functions, which such a server
    runs in threads, are limited, too, on stores that serve sync calls."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Put the limit in front of the handler."""
        handler = await continuation(handler_call_details)
        limiter = self._limiter(handler_call_details.method)
        if handler is None or limiter is None:
            return handler
        method = handler_call_details.method
        return _wrapped(handler, lambda *inner: self._async(limiter, method, *inner))

    def _async(self, limiter: _MethodLimiter, method: str, inner: Any, is_stream: bool) -> Any:
        """A handler of the same kind, since gRPC distinguishes generators from coroutines."""
        if inspect.isasyncgenfunction(inner):

            async def stream(request: Any, context: Any) -> Any:
                async with (
                    _AioCall(self, await self._admit(limiter, method, context), context),
                    # The generator ends before the charge is settled.
                    aclosing(inner(request, context)) as responses,
                ):
                    async for response in responses:
                        yield response

            return stream
        if not is_async(inner):
            return self._sync(limiter, method, inner, is_stream)

        async def handle(request: Any, context: Any) -> Any:
            async with _AioCall(self, await self._admit(limiter, method, context), context):
                return await inner(request, context)

        return handle

    async def _admit(self, limiter: _MethodLimiter, method: str, context: Any) -> Any:
        """The charge to hold while the call lasts, if there is one."""
        call = self._call(method, context)
        keys = limiter.keys(_known(await _awaited(self._key(call)), call), self._stored)
        if keys is None:
            return None
        cost = await _awaited(self._cost(call)) if callable(self._cost) else self._cost
        if cost == 0:
            return None  # a look never denies, and a call shows no figures
        try:
            answer = await limiter.aask(keys, cost)
            found = _found(answer)
        except StoreUnavailableError as error:
            found = self._failed(error)
            answer = limiter.let_pass()
        if isinstance(found, _Refusal):
            await context.abort(found.code, found.text, found.trailers)
        _note(context, answer)
        return found


class _AioCall:
    """The duration of a call: its charge is renewed meanwhile, and settled at the end."""

    __slots__ = ("_charge", "_context", "_limit")

    def __init__(self, limit: AioLimitInterceptor, charge: Any, context: Any) -> None:
        self._limit = limit
        self._charge = charge
        self._context = context

    async def __aenter__(self) -> None:
        if self._charge is not None:
            ahold(self._charge)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        _forget(self._context)
        if self._charge is None:
            return
        if error is None or isinstance(error, Exception):
            code = _status(self._context, _OK if error is None else _UNKNOWN)
        else:
            code = _CANCELLED
        ending = self._limit._aend(self._charge, code)
        # Also in a task that is being cancelled.
        await asyncio.shield(asyncio.ensure_future(ending))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _wrapped(handler: Any, wrap: Callable[[Any, bool], Any]) -> Any:
    """A handler of the same kind with a new function, made from the old one and whether that
    responds with a stream."""
    for kind in _KINDS:
        inner = getattr(handler, kind)
        if inner is not None:
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            outer = wrap(inner, kind.endswith("stream"))
            return make(outer, handler.request_deserializer, handler.response_serializer)
    return handler
