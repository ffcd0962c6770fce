"""Calls, from throttlekit/v1/rate_limiter.proto by `python -m tools.wire.protos`. Not to be edited."""

# fmt: off
# ruff: noqa
from . import rate_limiter_pb2 as pb

RATE_LIMITER = 'throttlekit.v1.RateLimiter'

RATE_LIMITER_METHODS = {
    'Check': (pb.CheckRequest, pb.CheckResponse),
    'CheckMany': (pb.CheckManyRequest, pb.CheckManyResponse),
    'Peek': (pb.PeekRequest, pb.PeekResponse),
    'Forecast': (pb.ForecastRequest, pb.ForecastResponse),
    'Debit': (pb.DebitRequest, pb.DebitResponse),
    'Admit': (pb.AdmitRequest, pb.AdmitResponse),
    'Release': (pb.ReleaseRequest, pb.ReleaseResponse),
    'Heartbeat': (pb.HeartbeatRequest, pb.HeartbeatResponse),
}


class RateLimiterStub:
    def __init__(self, channel):
        for name, (request, response) in RATE_LIMITER_METHODS.items():
            path = f'/{RATE_LIMITER}/{name}'
            codec = request.SerializeToString, response.FromString
            setattr(self, name, channel.unary_unary(path, *codec))


class RateLimiterAsyncStub(RateLimiterStub):
    pass

CHARGES = 'throttlekit.v1.Charges'

CHARGES_METHODS = {
    'Reserve': (pb.ChargeRequest, pb.ChargeResponse),
    'Settle': (pb.SettleRequest, pb.SettleResponse),
    'Cancel': (pb.CancelRequest, pb.CancelResponse),
    'Renew': (pb.RenewRequest, pb.RenewResponse),
    'Pause': (pb.PauseRequest, pb.PauseResponse),
    'Reset': (pb.ResetRequest, pb.ResetResponse),
}


class ChargesStub:
    def __init__(self, channel):
        for name, (request, response) in CHARGES_METHODS.items():
            path = f'/{CHARGES}/{name}'
            codec = request.SerializeToString, response.FromString
            setattr(self, name, channel.unary_unary(path, *codec))


class ChargesAsyncStub(ChargesStub):
    pass
