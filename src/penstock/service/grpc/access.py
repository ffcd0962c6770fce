"""Who may call what: one dictionary lookup per call and, with a token, one comparison.

It is the library's lookup of a method, not an interceptor, which would cost every call another
coroutine. A stranger is turned away before a byte of the request is read, and so is everyone while
there is no place left, and once the door is being closed: the library by itself would cut off calls
that it has not looked at yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from ..http.access import Token
from .places import Places

__all__ = ["Access"]

if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[Any, Any]
else:
    _Handler = grpc.GenericRpcHandler


class Access(_Handler):
    """The methods of the door, by full name. Those in `public` need neither token nor place and
    are there until the end. `turned_away` counts the calls that came too late."""

    def __init__(
        self,
        handlers: Mapping[str, Any],
        token: str | None,
        public: Iterable[str],
        places: Places,
        leaving: asyncio.Event,
    ) -> None:
        self._handlers = dict(handlers)
        self._token = None if token is None else Token(token)
        self._public = frozenset(public)
        self._places = places
        self._leaving = leaving
        self.turned_away = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None or method in self._public:
            return handler
        if self._token is not None:
            metadata = handler_call_details.invocation_metadata
            if not self._token.accept(_authorization(metadata)):
                return _UNKNOWN
        if self._leaving.is_set():
            self.turned_away += 1
            return _TOO_LATE
        return handler if self._places.taken < self._places.limit else _FULL


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    for name, value in metadata:
        if name == "authorization" and isinstance(value, str):
            return value
    return None


def _refusal(status: grpc.StatusCode, text: str) -> Any:
    async def refuse(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(status, text)

    # A stream on both sides, since that kind waits for no message.
    return grpc.stream_stream_rpc_method_handler(refuse)


_UNKNOWN = _refusal(
    grpc.StatusCode.UNAUTHENTICATED,
    "this service wants a token, as metadata 'authorization: Bearer <token>'",
)
_TOO_LATE = _refusal(grpc.StatusCode.UNAVAILABLE, "this service is stopping; ask another one")
_FULL = _refusal(
    grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls are at work here; ask again in a moment"
)
