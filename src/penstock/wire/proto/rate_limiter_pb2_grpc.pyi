"""Calls, from throttlekit/v1/rate_limiter.proto by `python -m tools.wire.protos`. Not to be edited."""

# fmt: off
# ruff: noqa
from typing import Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from . import rate_limiter_pb2 as pb

RATE_LIMITER: Final = 'throttlekit.v1.RateLimiter'
RATE_LIMITER_METHODS: dict[str, tuple[type[Message], type[Message]]]

class RateLimiterStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Check: grpc.UnaryUnaryMultiCallable[pb.CheckRequest, pb.CheckResponse]
    CheckMany: grpc.UnaryUnaryMultiCallable[pb.CheckManyRequest, pb.CheckManyResponse]
    Peek: grpc.UnaryUnaryMultiCallable[pb.PeekRequest, pb.PeekResponse]
    Forecast: grpc.UnaryUnaryMultiCallable[pb.ForecastRequest, pb.ForecastResponse]
    Debit: grpc.UnaryUnaryMultiCallable[pb.DebitRequest, pb.DebitResponse]
    Admit: grpc.UnaryUnaryMultiCallable[pb.AdmitRequest, pb.AdmitResponse]
    Release: grpc.UnaryUnaryMultiCallable[pb.ReleaseRequest, pb.ReleaseResponse]
    Heartbeat: grpc.UnaryUnaryMultiCallable[pb.HeartbeatRequest, pb.HeartbeatResponse]

class RateLimiterAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Check: grpc.aio.UnaryUnaryMultiCallable[pb.CheckRequest, pb.CheckResponse]
    CheckMany: grpc.aio.UnaryUnaryMultiCallable[pb.CheckManyRequest, pb.CheckManyResponse]
    Peek: grpc.aio.UnaryUnaryMultiCallable[pb.PeekRequest, pb.PeekResponse]
    Forecast: grpc.aio.UnaryUnaryMultiCallable[pb.ForecastRequest, pb.ForecastResponse]
    Debit: grpc.aio.UnaryUnaryMultiCallable[pb.DebitRequest, pb.DebitResponse]
    Admit: grpc.aio.UnaryUnaryMultiCallable[pb.AdmitRequest, pb.AdmitResponse]
    Release: grpc.aio.UnaryUnaryMultiCallable[pb.ReleaseRequest, pb.ReleaseResponse]
    Heartbeat: grpc.aio.UnaryUnaryMultiCallable[pb.HeartbeatRequest, pb.HeartbeatResponse]

CHARGES: Final = 'throttlekit.v1.Charges'
CHARGES_METHODS: dict[str, tuple[type[Message], type[Message]]]

class ChargesStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Reserve: grpc.UnaryUnaryMultiCallable[pb.ChargeRequest, pb.ChargeResponse]
    Settle: grpc.UnaryUnaryMultiCallable[pb.SettleRequest, pb.SettleResponse]
    Cancel: grpc.UnaryUnaryMultiCallable[pb.CancelRequest, pb.CancelResponse]
    Renew: grpc.UnaryUnaryMultiCallable[pb.RenewRequest, pb.RenewResponse]
    Pause: grpc.UnaryUnaryMultiCallable[pb.PauseRequest, pb.PauseResponse]
    Reset: grpc.UnaryUnaryMultiCallable[pb.ResetRequest, pb.ResetResponse]

class ChargesAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Reserve: grpc.aio.UnaryUnaryMultiCallable[pb.ChargeRequest, pb.ChargeResponse]
    Settle: grpc.aio.UnaryUnaryMultiCallable[pb.SettleRequest, pb.SettleResponse]
    Cancel: grpc.aio.UnaryUnaryMultiCallable[pb.CancelRequest, pb.CancelResponse]
    Renew: grpc.aio.UnaryUnaryMultiCallable[pb.RenewRequest, pb.RenewResponse]
    Pause: grpc.aio.UnaryUnaryMultiCallable[pb.PauseRequest, pb.PauseResponse]
    Reset: grpc.aio.UnaryUnaryMultiCallable[pb.ResetRequest, pb.ResetResponse]
