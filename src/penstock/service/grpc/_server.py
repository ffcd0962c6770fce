"""Opening and closing the gRPC server."""

from __future__ import annotations

import asyncio
import ssl
from time import perf_counter

from ...core._validation import reject
from .._access import BearerToken
from .._core import Service
from .._ports import GRPC_CONNECTIONS
from .._tls import Certificates
from ..connections import ConnectionBounds, Http2Client, Listener
from ..http2 import ErrorCode
from ._calls import decisions
from ._dispatch import ARRIVAL_S, MAX_STREAMS, GrpcCalls
from ._fleet import fleet_calls
from ._open_calls import MAX_CONCURRENT, TAKING_S, Places
from ._ready import ready_checks
from ._standard import Health, Reflection

__all__ = ["GrpcServer", "open_grpc"]

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
        """Have clients make no more calls, answer those on their way, and close. What is not done
        after `seconds` is cancelled. Health watchers hear of it first."""
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

    With a `token`, every call but those of the health service must present it. `fleet_secret` is
    what a caller must present to be handed out budget; by default the token, and without either
    only callers on this machine are. `max_concurrent` calls may be at work at once; the message of
    each has `arrival_s` seconds to arrive, and its reply `taking_s` to be read. Beside them
    `max_streams` may watch the health, and as many reflect. Of connections there may be
    `max_connections`; one more takes the place of the oldest that has not asked for a decision.
    `reuse_port` lets several processes share one port.
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
