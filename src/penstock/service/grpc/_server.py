"""The two services that every gRPC server is expected to have: health and reflection.

Both have calls that stay open for as long as the client likes, and probes carry no token. So these
calls have places of their own, of which a stranger may take all without keeping out a call that
decides something; and they end by themselves when the server drains, so that they never hold it up.

Opening and closing the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ...core._validation import reject
from ...wire.proto import POOL
from ...wire.proto.fleet_pb2_grpc import FLEET
from ...wire.proto.rate_limiter_pb2_grpc import CHARGES, RATE_LIMITER
from .._core import Service
from .._ports import GRPC_CONNECTIONS
from .._tls import Certificates
from ._access import Access, credentials
from ._calls import handlers, unary
from ._errors import UnknownServiceError, refuse
from ._fleet import fleet_handlers
from ._places import ARRIVAL_S, MAX_CONCURRENT, MAX_STREAMS, TAKING_S, Places, cut

__all__ = [
    "CALLS_PER_CONNECTION",
    "HEALTH",
    "HEALTH_CHECK",
    "HEALTH_WATCH",
    "MAX_MESSAGE_BYTES",
    "REFLECTION_INFO",
    "GrpcServer",
    "Health",
    "Reflection",
    "open_grpc",
]


HEALTH = "grpc.health.v1.Health"
HEALTH_CHECK = f"/{HEALTH}/Check"
HEALTH_WATCH = f"/{HEALTH}/Watch"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
REFLECTION_INFO = f"/{REFLECTION}/ServerReflectionInfo"

Context = grpc.aio.ServicerContext[Any, Any]
_Status = health_pb2.HealthCheckResponse
_parse = health_pb2.HealthCheckRequest.FromString

_LOOK_EVERY_S = 1.0


class Health:
    """`grpc.health.v1`, for the whole ("") and by name: serving while the service is ready, as by
    `/ready`, and the server does not drain.

    `probes` holds Check to its times, and to no number: a probe that is refused when there are many
    would have a service restarted for being asked.
    """

    def __init__(
        self,
        service: Service,
        probes: Places,
        watches: Places,
        leaving: asyncio.Event,
        codes: Counter[str],
    ) -> None:
        self._service = service
        self._look: asyncio.Future[bool] | None = None
        self._look_again_at = 0.0
        self._probes = probes
        self._watches = watches
        self._leaving = leaving
        self._codes = codes
        self._known = ("", RATE_LIMITER, CHARGES, FLEET)

    def handlers(self) -> dict[str, Any]:
        check = unary(_parse, self._check, self._probes, _unseen, self._codes)
        return {
            HEALTH_CHECK: grpc.stream_unary_rpc_method_handler(check),
            HEALTH_WATCH: grpc.stream_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, request: Any) -> Any:
        if request.service not in self._known:
            raise UnknownServiceError("there is no such service here")
        return self._message(request.service, await self._service.decides())

    async def _watch(self, _: object, context: Context) -> None:
        try:
            name = _parse(await self._watches.first_message(context)).service
        except Exception as error:
            await refuse(context, error, self._codes)
        told = None
        while True:
            leaving = self._leaving.is_set()
            message = self._message(name, await self._was_ready())
            if message != told:
                await context.write(message.SerializeToString())
                told = message
            if leaving:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _LOOK_EVERY_S)
        self._codes["OK"] += 1

    async def _was_ready(self) -> bool:
        """Whether the service is ready, as of a moment ago: one look for all who watch."""
        now = asyncio.get_running_loop().time()
        if self._look is None or (self._look.done() and now >= self._look_again_at):
            self._look = asyncio.ensure_future(self._service.decides())
            self._look_again_at = now + _LOOK_EVERY_S
        # Who stops watching does not end it for the others.
        return await asyncio.shield(self._look)

    def _message(self, name: str, ready: bool) -> Any:
        if name not in self._known:
            return _Status(status=_Status.SERVICE_UNKNOWN)
        serving = ready and not self._leaving.is_set()
        return _Status(status=_Status.SERVING if serving else _Status.NOT_SERVING)


def _unseen(seconds: float) -> None:
    """The time that a probe takes says nothing about requests."""


class Reflection:
    """Tells a client without the protos what is served here."""

    def __init__(self, places: Places, leaving: asyncio.Event, codes: Counter[str]) -> None:
        self._places = places
        self._leaving = leaving
        self._codes = codes
        # Ours are in a pool of their own; the standard ones join them there.
        for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            POOL.AddSerializedFile(file.serialized_pb)
        names = (RATE_LIMITER, CHARGES, FLEET, HEALTH, REFLECTION)
        self._servicer: Any = reflection.ReflectionServicer(names, POOL)

    def handlers(self) -> dict[str, Any]:
        return {REFLECTION_INFO: grpc.stream_stream_rpc_method_handler(self._info)}

    async def _info(self, requests: Any, context: Context) -> None:
        leaving = asyncio.ensure_future(self._leaving.wait())
        self._places.taken += 1
        try:
            while (raw := await _next(requests, leaving)) is not None:
                request = _reflection_request(raw)
                for response in self._servicer.ServerReflectionInfo(iter((request,)), context):
                    await context.write(response.SerializeToString())
            self._codes["OK"] += 1
        finally:
            self._places.taken -= 1
            leaving.cancel()


async def _next(requests: Any, leaving: asyncio.Future[Any]) -> bytes | None:
    """The next request; None after the last one, or once the server drains."""
    coming = asyncio.ensure_future(anext(requests, None))
    try:
        await asyncio.wait((coming, leaving), return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    finally:
        coming.cancel()


def _reflection_request(raw: bytes) -> Any:
    """Bytes that are no request become one that asks for nothing, and is answered so."""
    try:
        return reflection_pb2.ServerReflectionRequest.FromString(raw)
    except DecodeError:
        return reflection_pb2.ServerReflectionRequest()


MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""A batch of 1,000 keys of 4,096 bytes, and some air."""

CALLS_PER_CONNECTION = 32
"""Calls that one connection may have open; a client's library lets further ones wait. A call that
has arrived costs the library 16 KB before this service has seen it, and no call may be cut off for
that, so this times the number of connections bounds the memory."""

# How long a call may wait to be looked at. The library's own 30 s would end calls on a machine that
# is merely slow; callers have deadlines of their own.
_UNSEEN_S = 600
_IDLE_MS = 300_000
_MAX_METADATA_BYTES = 16 * 1024
_PING_EVERY_MS = 60_000
_PING_TIMEOUT_MS = 20_000
_CLIENT_PINGS_MS = 10_000

# When the library closes, it cuts off calls that it has received and not yet handed over, and may
# reset a connection on which an answer is still under way. So it is told to only when all have been
# answered, and for a moment nothing has come.
_SETTLE_S = 1.0
_LULL_S = 0.05


class GrpcServer:
    """An open server. Made by `open_grpc`; `port` is the one it listens on."""

    def __init__(
        self,
        server: grpc.aio.Server,
        port: int,
        access: Access,
        pools: Sequence[Places],
        leaving: asyncio.Event,
    ) -> None:
        self.port = port
        self._server = server
        self._access = access
        self._pools = pools
        self._leaving = leaving

    async def drain(self, seconds: float) -> None:
        """Take no more calls, let those at work finish, and close. What is not done after
        `seconds` is cancelled. Health watchers hear of it first."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._leaving.set()
        await self._settle(began + seconds)
        await self._server.stop(max(0.0, began + seconds - loop.time()))
        for pool in self._pools:
            pool.stop()

    async def _settle(self, until: float) -> None:
        """Wait until no call is at work, and then for a moment in which none comes."""
        loop = asyncio.get_running_loop()
        while any(pool.taken for pool in self._pools) and loop.time() < until:
            await asyncio.sleep(_LULL_S / 5)
        until = min(until, loop.time() + _SETTLE_S)
        while loop.time() < until:
            before = self._access.turned_away
            await asyncio.sleep(_LULL_S)
            if self._access.turned_away == before:
                return


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

    With a `token`, every call but those of the health service must present it. `fleet_secret` is
    what a caller must present to be handed out budget; by default the token, and without either
    only callers on this machine are. `max_concurrent` calls may be at work at once; the message of
    each has `arrival_s` seconds to arrive, and its reply `taking_s` to be read. Beside them
    `max_streams` may watch the health, and as many reflect. Of connections there may be
    `max_connections`; one more is closed before it has said anything. `reuse_port` lets several
    processes share one port, and must not be set otherwise: a port that is taken would go
    unnoticed.
    """
    if token is not None and not token.strip():
        reject("the token must not be empty")
    leaving = asyncio.Event()
    replies = service.metrics.grpc
    places, probes = (Places(max_concurrent, arrival_s, taking_s) for _ in range(2))
    watches, reflections = (Places(max_streams, arrival_s, taking_s) for _ in range(2))
    health = Health(service, probes, watches, leaving, replies.codes).handlers()
    reflection = Reflection(reflections, leaving, replies.codes).handlers()
    decisions = {
        **handlers(service, places),
        **fleet_handlers(service, places, token if fleet_secret is None else fleet_secret),
    }
    pools = {
        **dict.fromkeys(decisions, places),
        HEALTH_WATCH: watches,
        REFLECTION_INFO: reflections,
    }
    calls = {**decisions, **reflection, **health}
    access = Access(calls, token, health, pools, leaving, replies)
    server = grpc.aio.server(handlers=(access,), options=_options(reuse_port, max_connections))
    bound = _listen(server, host, port, tls)
    await server.start()
    every = (places, probes, watches, reflections)
    for pool in every:
        pool.cut = partial(cut, bound)
        pool.start()
    return GrpcServer(server, bound, access, every, leaving)


def _listen(server: grpc.aio.Server, host: str, port: int, tls: Certificates | None) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    secure = None if tls is None else credentials(tls)
    try:
        if secure is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, secure)
    except RuntimeError:
        # The library keeps the reason to its own log.
        reject(f"cannot serve gRPC on {address}: the port is in use; choose another --grpc-port")


def _options(reuse_port: bool, max_connections: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION),
        # The library counts a call until its memory is freed, which a client that has its answer
        # does not wait for. As many again may be on their way out, or their successors would be
        # refused (UNAVAILABLE); more than that are streams that were opened only to be reset.
        ("grpc.http2.max_deallocating_streams", CALLS_PER_CONNECTION),
        # By default the library cuts off (CANCELLED) calls that it could not hand over yet, at
        # random from 1,000 on. All that the connections may bring must find room: those that are
        # too many are refused by this service, which says when to come back, and counts them.
        ("grpc.server.max_pending_requests", max_connections * CALLS_PER_CONNECTION),
        ("grpc.server.max_pending_requests_hard_limit", max_connections * CALLS_PER_CONNECTION),
        ("grpc.server_max_unrequested_time_in_server", _UNSEEN_S),
        # Clients connect again by themselves when they have something to ask.
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        # Peers that vanished are found out and their calls ended.
        ("grpc.keepalive_time_ms", _PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        # Clients that ping more often than this are disconnected.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _CLIENT_PINGS_MS),
    ]
