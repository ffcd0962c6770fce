"""gRPC: interceptors that limit the calls of a server, or those of a client, sync and aio.

    server = grpc.server(executor, interceptors=[LimitInterceptor("100/second")])
    server = grpc.aio.server(interceptors=[AioLimitInterceptor("100/second")])

A server refuses with RESOURCE_EXHAUSTED and the time to wait, as `grpc-retry-pushback-ms` and as a
`google.rpc.RetryInfo` in the details of the status. A client waits before it calls, and obeys
both. All four kinds of calls are covered; a stream counts once, when it begins.
"""

from __future__ import annotations

from ...core._errors import require_module as _require_module

_require_module(__name__, "grpc")

from ._calls import GrpcCall, by_peer  # noqa: E402
from ._client import LimitClientInterceptor, aio_client_interceptors  # noqa: E402
from ._server import AioLimitInterceptor, LimitInterceptor, verdict_of  # noqa: E402

__all__ = [
    "AioLimitInterceptor",
    "GrpcCall",
    "LimitClientInterceptor",
    "LimitInterceptor",
    "aio_client_interceptors",
    "by_peer",
    "verdict_of",
]
