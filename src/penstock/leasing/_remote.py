"""The far tier behind a server: a policy of a service, asked over gRPC.

It is a store as far as a two-tier limiter goes. A lease is `Fleet.Reserve`; `peek` and `forecast`
are those of the policy. The service's clock decides, and says how long what it granted lasts.
"""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from ..core._decision import Decision, Forecast, Outcome
from ..core._errors import UnsupportedError
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._transform import Grant, Transform
from ..wire.channels import Channels, call_error
from ..wire.messages import decision_of, forecast_of
from ..wire.proto import fleet_pb2, rate_limiter_pb2
from ..wire.proto.fleet_pb2_grpc import FleetAsyncStub, FleetStub
from ..wire.proto.rate_limiter_pb2_grpc import RateLimiterAsyncStub, RateLimiterStub

__all__ = ["FleetStore", "RemotePolicy"]


class RemotePolicy(Strategy):
    """Stands for a strategy that only the service knows. Its limit is learned from the answers."""

    name = "remote_policy"

    def __init__(self, policy: str) -> None:
        self.policy = policy

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        raise UnsupportedError(f"policy {self.policy!r} is decided by its service, not here")

    def __repr__(self) -> str:
        return f"policy {self.policy!r} of a service"


class FleetStore(Store):
    """One policy behind one server, sync and async. Channels are opened at the first call."""

    reads_own_clock = True

    def __init__(
        self,
        target: str,
        policy: str,
        *,
        axis: int,
        secret: str | None,
        token: str | None,
        credentials: grpc.ChannelCredentials | None,
        timeout_ms: int,
    ) -> None:
        self.target = target
        self._policy = policy
        self._axis = axis
        self._timeout_s = timeout_ms / 1000
        self._metadata = tuple(_metadata(secret, token))
        self._channels = Channels(target, credentials, _stubs, _astubs)

    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        fleet, limiter = self._channels.stubs()
        call, request, read = self._call(fleet, limiter, key, transform, cost)
        try:
            return read(call(request, timeout=self._timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raise call_error(self.target, error) from error

    async def aapply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        fleet, limiter = self._channels.astubs()
        call, request, read = self._call(fleet, limiter, key, transform, cost)
        try:
            return read(await call(request, timeout=self._timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raise call_error(self.target, error) from error

    def close(self) -> None:
        self._channels.close()

    async def aclose(self) -> None:
        await self._channels.aclose()

    def __repr__(self) -> str:
        return f"<FleetStore of policy {self._policy!r} at {self.target}>"

    def _call(
        self, fleet: Any, limiter: Any, key: str, transform: Transform[Any], cost: int
    ) -> tuple[Any, Any, Any]:
        """(the call, its message, what makes a result of the answer)."""
        policy = self._policy
        if transform.role == "lease":
            caller = fleet_pb2.Caller(domain=key)
            request = fleet_pb2.ReserveRequest(
                policy=policy, caller=caller, wants=cost, axis=self._axis
            )
            return fleet.Reserve, request, _grant
        if transform.role == "peek":
            peek = rate_limiter_pb2.PeekRequest(policy=policy, key=key)
            return limiter.Peek, peek, lambda answer: decision_of(answer.decision)
        if transform.role == "forecast":
            ask = rate_limiter_pb2.ForecastRequest(policy=policy, key=key, cost=cost)
            return limiter.Forecast, ask, _forecast
        raise UnsupportedError(
            f"a leased limiter cannot {transform.role!r} a policy of a service; ask the service"
        )


def _stubs(channel: grpc.Channel) -> tuple[FleetStub, RateLimiterStub]:
    return FleetStub(channel), RateLimiterStub(channel)


def _astubs(channel: grpc.aio.Channel) -> tuple[FleetAsyncStub, RateLimiterAsyncStub]:
    return FleetAsyncStub(channel), RateLimiterAsyncStub(channel)


def _metadata(secret: str | None, token: str | None) -> list[tuple[str, str]]:
    pairs = []
    if secret is not None:
        pairs.append(("x-fleet-secret", secret))
    if token is not None:
        pairs.append(("authorization", f"Bearer {token}"))
    return pairs


def _grant(answer: fleet_pb2.ReserveResponse) -> Grant:
    lease = answer.lease
    retry = 0 if lease.capacity else max(1, lease.retry_after_ms)
    decision = Decision(lease.capacity > 0, lease.limit, 0, lease.expiry_ms, retry)
    return Grant(lease.capacity, decision, lease.expiry_ms - lease.refresh_interval_ms)


def _forecast(answer: rate_limiter_pb2.ForecastResponse) -> Forecast:
    return forecast_of(answer.forecast)
