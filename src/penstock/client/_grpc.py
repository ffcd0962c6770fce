"""The gRPC transport: converts the calls and fields of HTTP to messages and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from ..wire.channels import Channels, call_error, decoded
from ..wire.proto import rate_limiter_pb2 as pb
from ..wire.proto.rate_limiter_pb2_grpc import (
    ChargesAsyncStub,
    ChargesStub,
    RateLimiterAsyncStub,
    RateLimiterStub,
)
from ._transport import SPENDING, Answer

__all__ = ["GrpcTransport"]

_MESSAGES: dict[str, Any] = {
    "admit": pb.AdmitRequest,
    "cancel": pb.CancelRequest,
    "check": pb.CheckRequest,
    "check-many": pb.CheckManyRequest,
    "debit": pb.DebitRequest,
    "forecast": pb.ForecastRequest,
    "heartbeat": pb.HeartbeatRequest,
    "pause": pb.PauseRequest,
    "peek": pb.PeekRequest,
    "release": pb.ReleaseRequest,
    "renew": pb.RenewRequest,
    "reserve": pb.ChargeRequest,
    "reset": pb.ResetRequest,
    "settle": pb.SettleRequest,
}
_DOUBT = "; it may have been charged"


class GrpcTransport:
    """Calls a service over gRPC. `target` is host and port; `credentials` are those of grpcio, for
    TLS."""

    def __init__(
        self,
        target: str,
        *,
        token: str | None,
        timeout_ms: int,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        self.where: str = target
        self._timeout_s = timeout_ms / 1000
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._channels = Channels(target, credentials, _calls, _acalls, timeout_ms=timeout_ms)

    def call(self, name: str, fields: Mapping[str, Any]) -> Answer:
        call, message = self._channels.stubs()[name], _message(name, fields)
        try:
            return _told(call(message, timeout=self._timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raise call_error(self.where, error, _DOUBT if name in SPENDING else "") from error

    async def acall(self, name: str, fields: Mapping[str, Any]) -> Answer:
        call, message = self._channels.astubs()[name], _message(name, fields)
        doubt = _DOUBT if name in SPENDING else ""
        try:
            reply = await call(message, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise call_error(self.where, error, doubt) from error
        return _told(decoded(self.where, reply, doubt))

    def close(self) -> None:
        self._channels.close()

    async def aclose(self) -> None:
        await self._channels.aclose()


def _calls(channel: grpc.Channel) -> dict[str, Any]:
    return _by_name(RateLimiterStub(channel), ChargesStub(channel))


def _acalls(channel: grpc.aio.Channel) -> dict[str, Any]:
    return _by_name(RateLimiterAsyncStub(channel), ChargesAsyncStub(channel))


def _by_name(*stubs: Any) -> dict[str, Any]:
    calls = {}
    for name in _MESSAGES:
        method = name.title().replace("-", "")
        calls[name] = next(getattr(stub, method) for stub in stubs if hasattr(stub, method))
    return calls


def _message(name: str, fields: Mapping[str, Any]) -> Any:
    told = dict(fields)
    attributes = told.get("attributes")
    if isinstance(attributes, Mapping):
        told["attributes"] = _attributes(attributes)
    elif attributes is not None:
        del told["attributes"]
        told["requests"] = [
            pb.RequestAttributes(attributes=_attributes(each)) for each in attributes
        ]
    if "costs" in told:
        told["costs"] = _by_limit(told["costs"])
    actual = told.get("actual")
    if isinstance(actual, Mapping):
        del told["actual"]
        told["by_limit"] = _by_limit(actual)
        # Otherwise limits that are left out would be settled at an actual cost of 0.
        told["as_reserved"] = True
    return _MESSAGES[name](**told)


def _by_limit(units: Mapping[str, int]) -> list[pb.LimitUnits]:
    return [pb.LimitUnits(limit=limit, units=each) for limit, each in units.items()]


def _attributes(told: Mapping[str, str | int]) -> list[pb.Attribute]:
    return [_attribute(*each) for each in told.items()]


def _attribute(name: str, value: str | int) -> pb.Attribute:
    if isinstance(value, str):
        return pb.Attribute(name=name, text=value)
    return pb.Attribute(name=name, number=value)


def _told(message: Any) -> dict[str, Any]:
    """The fields of a message, as in an answer over HTTP."""
    told = {field.name: _value(field, getattr(message, field.name)) for field in _fields(message)}
    if "limits" in told:
        limits = told["limits"]
        told["limits"] = {each["name"]: each["decision"] for each in limits}
        told["shadows"] = [each["name"] for each in limits if each["shadow"]]
    if "uncharged" in told:
        told["uncharged"] = {each["limit"]: each["units"] for each in told["uncharged"]}
    return told


def _value(field: Any, value: Any) -> Any:
    if field.message_type is None:
        return value if isinstance(value, (str, int)) else list(value)
    return _told(value) if hasattr(value, "DESCRIPTOR") else [_told(each) for each in value]


def _fields(message: Any) -> Any:
    return message.DESCRIPTOR.fields
