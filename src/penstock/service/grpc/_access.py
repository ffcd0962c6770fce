"""Who may call what: one dictionary lookup per call and, with a token, one comparison.

It is the library's lookup of a method, not an interceptor, which would cost every call another
coroutine. A stranger is turned away before a byte of the request is read, and so is everyone while
there is no place left, and once the server is being closed: the library by itself would cut off
calls that it has not looked at yet.

From certificates to what the library wants.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from ...wire.proto.rate_limiter_pb2_grpc import CHARGES
from .._access import BearerToken
from .._metrics import Replies
from .._tls import Certificates
from ._errors import refuse_with
from ._places import Places

__all__ = ["Access", "credentials"]


# What changes counts without a request having been decided.
FOR_OPERATORS = (f"/{CHARGES}/Pause", f"/{CHARGES}/Reset")

if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[Any, Any]
else:
    _Handler = grpc.GenericRpcHandler


class Access(_Handler):
    """The methods of the server, by full name. Those in `public` need no token and are there until
    the end; those in `pools` need a place in theirs. `turned_away` counts the calls that came too
    late, `replies` all that were refused here."""

    def __init__(
        self,
        handlers: Mapping[str, Any],
        token: str | None,
        public: Iterable[str],
        pools: Mapping[str, Places],
        leaving: asyncio.Event,
        replies: Replies,
    ) -> None:
        guests = frozenset(public)
        self._methods = {
            name: (handler, pools.get(name), name in guests) for name, handler in handlers.items()
        }
        self._token = None if token is None else BearerToken(token)
        self._leaving = leaving
        self._replies = replies
        self._stranger, self._too_late, self._full, self._no_token = (
            _refusal(status, text, replies.codes) for status, text in _REFUSALS
        )
        self.turned_away: int = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        found = self._methods.get(handler_call_details.method)
        if found is None:
            self._replies.codes["UNIMPLEMENTED"] += 1
            return None
        handler, pool, public = found
        if not public:
            if self._token is None:
                if handler_call_details.method in FOR_OPERATORS:
                    return self._no_token
            else:
                metadata = handler_call_details.invocation_metadata
                if not self._token.accept(_authorization(metadata)):
                    return self._stranger
            if self._leaving.is_set():
                self.turned_away += 1
                return self._too_late
        if pool is not None and pool.taken >= pool.limit:
            self._replies.shed += 1
            return self._full
        return handler


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    for name, value in metadata:
        if name == "authorization" and isinstance(value, str):
            return value
    return None


def _refusal(status: grpc.StatusCode, text: str, codes: Counter[str]) -> Any:
    """A method that refuses. It is a stream on both sides, since that kind waits for no message."""

    async def refuse(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await refuse_with(context, status, text, codes)

    return grpc.stream_stream_rpc_method_handler(refuse)


_REFUSALS = (
    (
        grpc.StatusCode.UNAUTHENTICATED,
        "this service wants a token, as metadata 'authorization: Bearer <token>'",
    ),
    (grpc.StatusCode.UNAVAILABLE, "this service is stopping; ask another one"),
    (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "too many calls are at work here; ask again in a moment",
    ),
    (
        grpc.StatusCode.UNAUTHENTICATED,
        "this is for operators, who have a token; start the service with --token-file or "
        "PENSTOCK_TOKEN",
    ),
)


def credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Asked anew for every handshake, so that it shows certificates which were read again."""
    shown = certificates.pem()

    def configuration() -> grpc.ServerCertificateConfiguration:
        key, chain, ca = shown
        return grpc.ssl_server_certificate_configuration([(key, chain)], ca)

    def newest() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        if certificates.pem() is shown:
            return None
        shown = certificates.pem()
        return configuration()

    asks = shown[2] is not None
    # None, for "as before", is not in the library's stubs.
    return grpc.dynamic_ssl_server_credentials(configuration(), newest, asks)  # type: ignore[arg-type]
