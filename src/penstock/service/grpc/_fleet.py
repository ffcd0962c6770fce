"""The Fleet call, and who may make it.

Without a secret, callers on this machine; with one, whoever presents it. Decided before the request
is read, and in the same time for any wrong secret.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from ...core._errors import UnsupportedError
from ...core._validation import reject, require_int
from ...wire.proto import fleet_pb2 as pb
from ...wire.proto.fleet_pb2_grpc import FLEET, FLEET_METHODS
from .._access import BearerToken
from .._core import Service
from ..connections import Http2Client
from ._dispatch import Unary
from ._open_calls import Places
from ._protocol import GrpcError, Status

__all__ = ["FLEET", "fleet_calls"]


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
        # Both are looked at, whichever is good.
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
            )
        )
