"""Who may call what: one dictionary lookup per call and, with a token, one comparison.

It is the library's lookup of a method, not an interceptor, which would cost every call another
coroutine. A stranger is turned away before a byte of the request is read.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

__all__ = ["Access"]

_SCHEME = "bearer "

if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[Any, Any]
else:
    _Handler = grpc.GenericRpcHandler


class Access(_Handler):
    """The methods of the door, by full name. Those in `public` need no token."""

    def __init__(
        self, handlers: Mapping[str, Any], token: str | None, public: Iterable[str] = ()
    ) -> None:
        self._handlers = dict(handlers)
        self._token = None if token is None else token.encode()
        self._public = frozenset(public)
        # A stream on both sides, since that kind waits for no message.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None or self._token is None or method in self._public:
            return handler
        return handler if self._knows(handler_call_details.invocation_metadata) else self._refusal

    def _knows(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        assert self._token is not None
        for name, value in metadata:
            if name == "authorization" and isinstance(value, str):
                scheme, token = value[: len(_SCHEME)], value[len(_SCHEME) :]
                if scheme.lower() == _SCHEME and hmac.compare_digest(token.encode(), self._token):
                    return True
        return False


async def _refuse(requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "this service wants a token, as metadata 'authorization: Bearer <token>'",
    )
