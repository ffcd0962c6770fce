"""Opening and closing the gRPC server; the Fleet call and its authorization.

The Fleet call leases credits: without a secret, to callers on this machine; with one, to callers
that present it. That is decided before the request is read, in constant time for any wrong secret.

Common checks are answered in compiled code (`accel/_grpc.pyx`). Everything else is answered by
`_dispatch.py` and `_calls.py`, in the same way; so are all calls if nothing is compiled.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from ...core import native
from ...core._errors import UnsupportedError
from ...core._validation import reject, require_int
from ...wire.proto import fleet_pb2 as pb
from ...wire.proto.fleet_pb2_grpc import FLEET, FLEET_METHODS
from ...wire.proto.rate_limiter_pb2_grpc import RATE_LIMITER
from .._access import BearerToken, Certificates
from .._core import Service
from .._ports import GRPC_CONNECTIONS
from ..connections import ConnectionBounds, Http2Client, Listener
from ..http2 import ErrorCode, KnownPath, compiled
from ._calls import decisions
from ._dispatch import ARRIVAL_S, MAX_MESSAGE_BYTES, MAX_STREAMS, GrpcCalls, Unary
from ._open_calls import MAX_CONCURRENT, TAKING_S, Places
from ._protocol import GrpcError, Status
from ._standard import Health, Reflection

__all__ = [
    "FLEET",
    "GrpcServer",
    "fleet_calls",
    "open_grpc",
    "ready_checks",
]


_CHECK = f"/{RATE_LIMITER}/Check".encode()


def ready_checks(
    service: Service, routes: Mapping[bytes, KnownPath], places: Places, *, asks_token: bool
) -> Any:
    """The compiled factory of connections that answer checks themselves; None if not compiled."""
    if native is None or compiled is None:
        return None
    try:
        from ...accel import _grpc
    except ImportError:
        return None
    return _grpc.ReadyChecks(
        route=routes[_CHECK].number,
        max_bytes=MAX_MESSAGE_BYTES,
        entry_of=service.entry,
        places=places,
        durations=service.metrics.latency("grpc").durations,
        codes=service.metrics.grpc.codes,
        asks_token=asks_token,
    )


_AXES = {
    pb.AXIS_UNSPECIFIED: "rate",
    pb.AXIS_RATE: "rate",
    pb.AXIS_TOKEN_BUDGET: "token_budget",
}


def fleet_calls(service: Service, places: Places, secret: str | None) -> dict[str, Unary]:
    """By the full name of the method."""
    if secret is not None and not secret.strip():
        reject("the fleet's secret must not be empty")
    request, _ = FLEET_METHODS["Reserve"]
    observe = service.metrics.latency("grpc").observe
    method = Unary(request.FromString, _Answers(service).reserve, places, observe)
    method.guard = _Guard(None if secret is None else BearerToken(secret)).refusal
    return {f"/{FLEET}/Reserve": method}


_LOCAL_ONLY = GrpcError(
    Status.UNAUTHENTICATED,
    "without a secret, budget is handed out on this machine only; start it with one",
)
_NO_SECRET = GrpcError(
    Status.UNAUTHENTICATED,
    "this service hands out budget to those who present its secret, as metadata "
    "'x-fleet-secret' or 'authorization: Bearer <secret>'",
)


class _Guard:
    def __init__(self, secret: BearerToken | None) -> None:
        self._secret = secret

    def refusal(self, client: Http2Client, stream: Any) -> GrpcError | None:
        if self._secret is None:
            return None if _is_local(client.host) else _LOCAL_ONLY
        # Both are compared, even if the first matches: the time must not show which one did.
        named = self._secret.accept(f"Bearer {stream.get('x-fleet-secret') or ''}")
        borne = self._secret.accept(stream.get("authorization"))
        return None if named or borne else _NO_SECRET


def _is_local(host: str) -> bool:
    """Whether an address is one of this machine's own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class _Answers:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def reserve(self, request: pb.ReserveRequest) -> pb.ReserveResponse:
        require_int("has", request.has, low=0)
        require_int("used", request.used, low=0)
        axis = _AXES.get(request.axis)
        if axis is None:
            raise UnsupportedError(f"axis {request.axis} cannot be leased; rate and budgets can")
        lease = await self._service.hand_out(
            request.policy, request.caller.domain, request.wants, axis
        )
        return pb.ReserveResponse(
            lease=pb.Lease(
                capacity=lease.capacity,
                expiry_ms=lease.expiry_ms,
                refresh_interval_ms=lease.refresh_interval_ms,
                retry_after_ms=lease.retry_after_ms,
                limit=lease.limit,
                degraded=lease.degraded,
            )
        )


_LOOK_S = 0.01


class GrpcServer(Listener):
    """An open server. Made by `open_grpc`; `port` is the one it listens on. Its `calls` may be
    served on another port as well, for as long as it is open."""

    def __init__(
        self,
        service: Service,
        *,
        token: str | None,
        fleet_secret: str | None,
        max_concurrent: int,
        max_streams: int,
        max_connections: int,
        arrival_s: float,
        taking_s: float,
    ) -> None:
        bounds = ConnectionBounds().within(max_connections)
        super().__init__(bounds, asks_token=token is not None)
        self.port: int = 0
        self._leaving = asyncio.Event()
        places, probes = (Places(max_concurrent, taking_s) for _ in range(2))
        watches, reflections = (Places(max_streams, taking_s) for _ in range(2))
        self._pools = (places, probes, watches, reflections)
        self.calls: GrpcCalls = GrpcCalls(
            {
                **decisions(service, places),
                **fleet_calls(service, places, token if fleet_secret is None else fleet_secret),
                **Health(service, probes, watches, self._leaving, arrival_s).calls(),
                **Reflection(reflections, self._leaving).calls(),
            },
            service.metrics.grpc,
            token=None if token is None else BearerToken(token),
            bounds=bounds,
            arrival_s=arrival_s,
        )
        self.calls.ready = ready_checks(
            service, self.calls.routes, places, asks_token=token is not None
        )

    def connection(self, tls: ssl.SSLContext | None) -> Http2Client:
        return Http2Client(self, self.calls, tls)

    def tick(self) -> None:
        now = perf_counter()
        for pool in self._pools:
            pool.look_through(now)

    async def drain(self, seconds: float) -> None:
        """Tell clients to make no more calls, answer those in progress, and close. Calls that are
        not done after `seconds` are cancelled. Health watchers are notified first."""
        until = self.loop.time() + seconds
        self._leaving.set()
        self.close_listening()
        for client in self._clients():
            client.shut_down()
        while (self.open_connections or self.calls.at_work) and self.loop.time() < until:
            await asyncio.sleep(_LOOK_S)
        await self.calls.stop()
        for client in self._clients():
            client.end(ErrorCode.NO_ERROR)
        await self.cut()

    def _clients(self) -> list[Http2Client]:
        found = [*self.known.connections, *self.strangers.connections]
        return [client for client in found if isinstance(client, Http2Client)]


async def open_grpc(
    service: Service,
    *,
    host: str = "127.0.0.1",
    port: int = 50051,
    tls: Certificates | None = None,
    token: str | None = None,
    fleet_secret: str | None = None,
    max_concurrent: int = MAX_CONCURRENT,
    max_streams: int = MAX_STREAMS,
    max_connections: int = GRPC_CONNECTIONS,
    arrival_s: float = ARRIVAL_S,
    taking_s: float = TAKING_S,
    reuse_port: bool = False,
) -> GrpcServer:
    """Serve `service` on `host`:`port`; port 0 takes a free one.

    With a `token`, all calls except those of the health service need it. `fleet_secret` is needed
    to lease credits; by default it is the token, and without either only callers on this machine
    may lease. `max_concurrent` calls may be in progress; the message of each has `arrival_s`
    seconds to arrive, and its reply `taking_s` to be read. In addition `max_streams` calls may
    watch the health, and as many use reflection. There may be `max_connections`; one more replaces
    the oldest that has not asked for a decision. `reuse_port` lets several processes share one
    port.
    """
    if token is not None and not token.strip():
        reject("the token must not be empty")
    server = GrpcServer(
        service,
        token=token,
        fleet_secret=fleet_secret,
        max_concurrent=max_concurrent,
        max_streams=max_streams,
        max_connections=max_connections,
        arrival_s=arrival_s,
        taking_s=taking_s,
    )
    context = None if tls is None else tls.context
    try:
        server.port = await server.start(host, port, tls=context, shared=reuse_port)
    except OSError as error:
        await server.cut()
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        reject(f"cannot serve gRPC on {place}: {error.strerror}; choose another --grpc-port")
    return server
