"""`LeasedLimiter`: leases credits of a service's policy and spends them in this process.

It leases batches with the `Fleet` calls of gRPC. Leases run ahead of need, one at a time per key,
and no credit is spent after the window that the service named. While the service is away, credits
are spent as long as they are valid; then the fail mode decides:

| fail | answer |
|---|---|
| open | allowed, with nothing remaining |
| closed | denied, with a retry after one second |
| error | none: `store_unavailable` is raised |

A `peek` or `forecast` of a key without credits is answered the same way.

Its shared store is a `FleetStore`, which has the operations that a two-tier limiter needs: a lease
is `Fleet.Reserve`, and `peek` and `forecast` are calls on the policy. Decisions use the service's
clock, and the service tells how long a lease lasts.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NoReturn, get_args

import grpc
import grpc.aio

from ..core._clock import Clock
from ..core._decision import (
    RETRY_MS,
    Decision,
    DegradedDecision,
    DegradedForecast,
    Forecast,
    Outcome,
)
from ..core._errors import OverloadedError, StoreUnavailableError, UnsupportedError
from ..core._flow import Flow, adrive, drive
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._transform import Grant, Transform
from ..core._validation import (
    MAX_SPAN_MS,
    reject,
    require_choice,
    require_int,
    require_key,
    require_prefix,
)
from ..wire import decision_of, forecast_of
from ..wire.channels import Channels, call_error, decoded
from ..wire.proto import fleet_pb2, rate_limiter_pb2
from ..wire.proto.fleet_pb2_grpc import FleetAsyncStub, FleetStub
from ..wire.proto.rate_limiter_pb2_grpc import RateLimiterAsyncStub, RateLimiterStub
from ._credits import MAX_STALE_MS, REMOTE, overlap
from ._near import LeaseRequest
from ._two_tier import TwoTierLimiter, require_batch

__all__ = ["FleetStore", "LeasedLimiter", "RemotePolicy"]


class RemotePolicy(Strategy):
    """Stands for the strategy of the policy, which only the service knows. Its limit is learned
    from the answers."""

    name = "remote_policy"

    def __init__(self, policy: str) -> None:
        self.policy = policy

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        raise UnsupportedError(f"policy {self.policy!r} is decided by its service, not here")

    def __repr__(self) -> str:
        return f"policy {self.policy!r} of a service"


class FleetStore(Store):
    """One policy of one service as a store, sync and async. Connects with the first call."""

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
        self._channels = Channels(target, credentials, _stubs, _astubs, timeout_ms=timeout_ms)

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
            reply = await call(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise call_error(self.target, error) from error
        return read(decoded(self.target, reply))

    def close(self) -> None:
        self._channels.close()

    async def aclose(self) -> None:
        await self._channels.aclose()

    def __repr__(self) -> str:
        return f"<FleetStore of policy {self._policy!r} at {self.target}>"

    def _call(
        self, fleet: Any, limiter: Any, key: str, transform: Transform[Any], cost: int
    ) -> tuple[Any, Any, Any]:
        """The call, its message, and the function that reads the answer."""
        policy = self._policy
        if transform.role == "lease":
            caller = fleet_pb2.Caller(domain=key)
            request = fleet_pb2.ReserveRequest(
                policy=policy, caller=caller, wants=cost, axis=self._axis
            )
            return fleet.Reserve, request, partial(_grant, self.target, cost)
        if transform.role == "peek":
            peek = rate_limiter_pb2.PeekRequest(policy=policy, key=key)
            return limiter.Peek, peek, lambda answer: decision_of(answer.decision)
        if transform.role == "forecast":
            ask = rate_limiter_pb2.ForecastRequest(policy=policy, key=key, cost=cost)
            return limiter.Forecast, ask, _forecast
        raise _lacks(transform.role)


def _lacks(name: str) -> UnsupportedError:
    return UnsupportedError(f"LeasedLimiter does not support {name!r}; use a ServiceLimiter")


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


def _grant(target: str, wants: int, answer: fleet_pb2.ReserveResponse) -> Grant:
    lease = answer.lease
    if not 0 <= lease.capacity <= wants or min(lease.limit, lease.expiry_ms) < 0:
        raise StoreUnavailableError(
            f"{target} granted {lease.capacity} of {wants} credits, with limit {lease.limit} and "
            f"expiry {lease.expiry_ms}: that is no lease"
        )
    retry = 0 if lease.capacity else max(1, lease.retry_after_ms)
    decision = Decision(lease.capacity > 0, lease.limit, 0, lease.expiry_ms, retry)
    return Grant(lease.capacity, decision, lease.expiry_ms - lease.refresh_interval_ms)


def _forecast(answer: rate_limiter_pb2.ForecastResponse) -> Forecast:
    return forecast_of(answer.forecast)


FailMode = Literal["open", "closed", "error"]
Axis = Literal["rate", "token_budget"]

_AXES: dict[Axis, int] = {
    "rate": fleet_pb2.AXIS_RATE,
    "token_budget": fleet_pb2.AXIS_TOKEN_BUDGET,
}
# How often a request asks again if it needs more than the service grants at once.
_ATTEMPTS = 8


class LeasedLimiter(TwoTierLimiter):
    """A limiter that leases credits of a service's `federated` policy, and spends them in process.

    `check()` spends credits of `domain`, `check(key)` those of another key; the default domain is
    the policy itself. `target` is the gRPC server, such as "limits.internal:50051". `batch` credits
    are leased at once, and the next batch when `low_water` credits are left, by default a quarter
    of the batch. `secret` is the fleet secret and `token` the access token of the service;
    `credentials` are those of grpcio, for TLS. A call takes at most `timeout_ms`; without an
    answer, the fail mode decides. A denial is answered from memory for at most `max_stale_ms`.
    """

    def __init__(
        self,
        target: str,
        policy: str,
        domain: str = "",
        batch: int = 100,
        *,
        low_water: int | None = None,
        fail: FailMode = "open",
        axis: Axis = "rate",
        secret: str | None = None,
        token: str | None = None,
        credentials: Any = None,
        timeout_ms: int = 1_000,
        max_keys: int = 100_000,
        max_stale_ms: int = MAX_STALE_MS,
        clock: Clock | None = None,
    ) -> None:
        low = batch // 4 if low_water is None and type(batch) is int else low_water or 0
        require_batch(batch, low)
        if not isinstance(target, str) or not target:
            reject(
                "target must be the host and port of the gRPC server, such as 'localhost:50051', "
                f"not {target!r}"
            )
        self.policy: str = require_key(policy)
        self.domain: str = require_prefix(domain) or self.policy
        self.fail: FailMode = require_choice("fail", fail, get_args(FailMode))
        require_choice("axis", axis, tuple(_AXES))
        store = FleetStore(
            target,
            policy,
            axis=_AXES[axis],
            secret=_require_text("secret", secret),
            token=_require_text("token", token),
            credentials=credentials,
            timeout_ms=require_int("timeout_ms", timeout_ms, high=3_600_000),
        )
        super().__init__(
            RemotePolicy(policy),
            store,
            batch=batch,
            low_water=low,
            term=REMOTE,
            idle_ms=None,
            clock=clock,
            prefix="",
            max_keys=max_keys,
            max_stale_ms=require_int("max_stale_ms", max_stale_ms, high=MAX_SPAN_MS),
        )
        self._owns_store = True

    def _bind(self) -> None:
        # `check` takes a default key here, so it stays a method.
        super(TwoTierLimiter, self)._bind()

    def check(self, key: str | None = None, cost: int = 1) -> Decision:
        return self._spend(self.domain if key is None else key, cost)

    async def acheck(self, key: str | None = None, cost: int = 1) -> Decision:
        return await super().acheck(self.domain if key is None else key, cost)

    # The key defaults to the domain in all calls, and the fail mode applies to all of them.

    def peek(self, key: str | None = None) -> Decision:
        try:
            return super().peek(self.domain if key is None else key)
        except StoreUnavailableError as error:
            return self._failed(error, None)

    async def apeek(self, key: str | None = None) -> Decision:
        try:
            return await super().apeek(self.domain if key is None else key)
        except StoreUnavailableError as error:
            return self._failed(error, None)

    def forecast(self, key: str | None = None, cost: int = 1) -> Forecast:
        name = self.domain if key is None else key
        try:
            return super().forecast(name, cost)
        except StoreUnavailableError as error:
            return self._failed_forecast(error, name, cost)

    async def aforecast(self, key: str | None = None, cost: int = 1) -> Forecast:
        name = self.domain if key is None else key
        try:
            return await super().aforecast(name, cost)
        except StoreUnavailableError as error:
            return self._failed_forecast(error, name, cost)

    def acquire(
        self, key: str | None = None, cost: int = 1, timeout: float | None = None
    ) -> Decision:
        return super().acquire(self.domain if key is None else key, cost, timeout)

    async def aacquire(
        self, key: str | None = None, cost: int = 1, timeout: float | None = None
    ) -> Decision:
        return await super().aacquire(self.domain if key is None else key, cost, timeout)

    # `Fleet` only leases.

    def reserve(self, *args: Any, **options: Any) -> NoReturn:
        """Not supported: use a `ServiceLimiter`."""
        raise _lacks("reserve")

    async def areserve(self, *args: Any, **options: Any) -> NoReturn:
        """Not supported, as `reserve`."""
        raise _lacks("areserve")

    def pause(self, *args: Any, **options: Any) -> NoReturn:
        """Not supported: use a `ServiceLimiter`."""
        raise _lacks("pause")

    async def apause(self, *args: Any, **options: Any) -> NoReturn:
        """Not supported, as `pause`."""
        raise _lacks("apause")

    def reset(self, *args: Any, **options: Any) -> NoReturn:
        """Not supported: use a `ServiceLimiter`."""
        raise _lacks("reset")

    async def areset(self, *args: Any, **options: Any) -> NoReturn:
        """Not supported, as `reset`."""
        raise _lacks("areset")

    def _serve(self, key: str, cost: int, now: int | None = None) -> Decision:
        try:
            return super()._serve(key, cost, now)
        except StoreUnavailableError as error:
            return self._failed(error, now)

    async def _aserve(self, key: str, cost: int, now: int | None = None) -> Decision:
        try:
            return await super()._aserve(key, cost, now)
        except StoreUnavailableError as error:
            return self._failed(error, now)

    # The service does not know how much a request needs, and may grant less than that.

    def _fetch(self, request: LeaseRequest) -> Grant:
        return drive(self._fetching(request), super()._fetch)

    async def _afetch(self, request: LeaseRequest) -> Grant:
        return await adrive(self._fetching(request), super()._afetch)

    def _fetching(self, request: LeaseRequest) -> Flow[LeaseRequest, Grant]:
        grant = self._informed((yield request))
        for _ in range(_ATTEMPTS):
            if not 0 < grant.capacity < request.need:
                return grant
            try:
                more: Grant = yield _rest(request, grant)
            except StoreUnavailableError:
                self._near.keep(request, grant)
                raise
            if not more.capacity:
                # The expiry in a denial does not apply to what was granted before it.
                self._near.keep(request, grant)
                return more
            grant = _joined(grant, more)
        return _given_up(grant, request)

    def _informed(self, grant: Grant) -> Grant:
        """Learn the policy's limit, which may change with a reload of the service."""
        limit = grant.decision.limit
        if limit != self._near.limit:
            self.strategy.limit = limit
            self._near.retune(limit)
            self._bind()
        return grant

    def _failed(self, error: StoreUnavailableError, now: int | None) -> Decision:
        if self.fail == "error" or isinstance(error, OverloadedError):
            raise error
        asked_at = self._near.now() if now is None else now
        return DegradedDecision.by(self.fail, self._near.limit, asked_at)

    def _failed_forecast(self, error: StoreUnavailableError, key: str, cost: int) -> Forecast:
        """A forecast by the credits that are held and the fail mode."""
        decision = self._failed(error, None)
        held = self._near.held(key)
        # Before the first answer the limit is unknown, but at least this request is allowed.
        spendable = max(held, self._near.limit, cost) if decision.allowed else held
        forecast = Forecast(spendable // cost, decision.reset_at, decision.reset_at)
        return DegradedForecast(self.fail, forecast)


def _require_text(name: str, value: str | None) -> str | None:
    """Validate a value of gRPC metadata here; grpcio would only do so in a call."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or not value:
        # The value is a secret, so it is not shown.
        reject(f"{name} must be a text of printable ASCII characters, or None")
    return value


def _rest(request: LeaseRequest, grant: Grant) -> LeaseRequest:
    return request._replace(want=request.need - grant.capacity)


def _joined(first: Grant, more: Grant) -> Grant:
    """The sum of two grants. If they are of different windows, the first is void. With sliding
    windows, the sum lasts as long as the shorter of the two."""
    end, first_end = more.decision.reset_at, first.decision.reset_at
    if end != first_end and not overlap(first_end, end, more.now):
        return more
    now = max(more.now, end - (first_end - first.now))
    return Grant(first.capacity + more.capacity, more.decision, now)


def _given_up(grant: Grant, request: LeaseRequest) -> Grant:
    if grant.capacity >= request.need or not grant.decision.allowed:
        return grant
    limit, reset_at = grant.decision.limit, grant.decision.reset_at
    return grant._replace(decision=Decision(False, limit, 0, reset_at, RETRY_MS))
