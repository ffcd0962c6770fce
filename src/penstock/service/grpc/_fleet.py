"""The Fleet call, and who may make it.

Without a secret, callers on this machine; with one, whoever presents it. Decided before the request
is read, and in the same time for any wrong secret.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Any
from urllib.parse import unquote

import grpc

from ...core._errors import UnsupportedError
from ...core._validation import reject, require_int
from ...wire.proto import fleet_pb2 as pb
from ...wire.proto.fleet_pb2_grpc import FLEET, FLEET_METHODS
from .._access import BearerToken
from .._core import Service
from ._calls import Context, Method, unary
from ._errors import refuse_with
from ._places import Places

__all__ = ["FLEET", "fleet_handlers"]


_AXES = {
    pb.AXIS_UNSPECIFIED: "rate",
    pb.AXIS_RATE: "rate",
    pb.AXIS_TOKEN_BUDGET: "token_budget",
}


def fleet_handlers(service: Service, places: Places, secret: str | None) -> dict[str, Any]:
    """What the library calls, by the full name of the method."""
    if secret is not None and not secret.strip():
        reject("the fleet's secret must not be empty")
    answers = _Answers(service)
    observe = service.metrics.latency("grpc").observe
    codes = service.metrics.grpc.codes
    request, _ = FLEET_METHODS["Reserve"]
    method = unary(request.FromString, answers.reserve, places, observe, codes)
    guarded = _guarded(method, None if secret is None else BearerToken(secret), codes)
    return {f"/{FLEET}/Reserve": grpc.stream_unary_rpc_method_handler(guarded)}


def _guarded(method: Method, secret: BearerToken | None, codes: Counter[str]) -> Method:
    async def guarded(requests: object, context: Context) -> bytes:
        known = _is_local(context.peer()) if secret is None else _presents(context, secret)
        if not known:
            text = _LOCAL_ONLY if secret is None else _NO_SECRET
            await refuse_with(context, grpc.StatusCode.UNAUTHENTICATED, text, codes)
        return await method(requests, context)

    return guarded


_LOCAL_ONLY = "without a secret, budget is handed out on this machine only; start it with one"
_NO_SECRET = (
    "this service hands out budget to those who present its secret, as metadata "
    "'x-fleet-secret' or 'authorization: Bearer <secret>'"
)


def _presents(context: Context, secret: BearerToken) -> bool:
    good = False
    for name, value in context.invocation_metadata() or ():
        if not isinstance(value, str):
            continue
        if name == "x-fleet-secret":
            good |= secret.accept(f"Bearer {value}")
        elif name == "authorization":
            good |= secret.accept(value)
    return good


def _is_local(peer: str) -> bool:
    """Whether a peer, as the library writes it, is on this machine."""
    kind, _, rest = unquote(peer).partition(":")
    if kind == "unix":
        return True
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
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
