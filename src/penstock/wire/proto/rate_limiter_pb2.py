"""Messages, from throttlekit/v1/rate_limiter.proto by `python -m tools.wire.protos`. Not to be edited."""

# fmt: off
# ruff: noqa
from google.protobuf.message_factory import GetMessageClass

from . import POOL

POOL.AddSerializedFile(
    b'\n!throttlekit/v1/rate_limiter.proto\x12\x0ethrottlekit'
    b'.v1"\x9f\x01\n\x08Decision\x12\x18\n\x07allowed\x18\x01 \x01(\x08R\x07allowed\x12\x14\n\x05li'
    b'mit\x18\x02 \x01(\x03R\x05limit\x12\x1c\n\tremaining\x18\x03 \x01(\x03R\tremaining\x12\x19'
    b'\n\x08reset_at\x18\x04 \x01(\x03R\x07resetAt\x12$\n\x0eretry_after_ms\x18\x05 \x01('
    b'\x03R\x0cretryAfterMsJ\x04\x08\x06\x10\x10"L\n\x0cCheckRequest\x12\x16\n\x06policy\x18'
    b'\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x12\n\x04cost\x18\x03 \x01(\x03R\x04c'
    b'ost"E\n\rCheckResponse\x124\n\x08decision\x18\x01 \x01(\x0b2\x18.throttl'
    b'ekit.v1.DecisionR\x08decision"R\n\x10CheckManyRequest\x12\x16'
    b'\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x12\n\x04keys\x18\x02 \x03(\tR\x04keys\x12\x12\n\x04co'
    b'st\x18\x03 \x01(\x03R\x04cost"K\n\x11CheckManyResponse\x126\n\tdecisions'
    b'\x18\x01 \x03(\x0b2\x18.throttlekit.v1.DecisionR\tdecisions"7\n\x0bP'
    b'eekRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR'
    b'\x03key"D\n\x0cPeekResponse\x124\n\x08decision\x18\x01 \x01(\x0b2\x18.throttl'
    b'ekit.v1.DecisionR\x08decision"O\n\x0fForecastRequest\x12\x16\n'
    b'\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x12\n\x04cost\x18'
    b'\x03 \x01(\x03R\x04cost"H\n\x10ForecastResponse\x124\n\x08forecast\x18\x01 \x01('
    b'\x0b2\x18.throttlekit.v1.ForecastR\x08forecast"t\n\x08Forecas'
    b't\x12#\n\rspendable_now\x18\x01 \x01(\x03R\x0cspendableNow\x12*\n\x11next_r'
    b'eplenish_at\x18\x02 \x01(\x03R\x0fnextReplenishAt\x12\x17\n\x07full_at\x18\x03 '
    b'\x01(\x03R\x06fullAt"P\n\x0cDebitRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06pol'
    b'icy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x16\n\x06tokens\x18\x03 \x01(\x03R\x06tokens"E\n'
    b'\rDebitResponse\x124\n\x08decision\x18\x01 \x01(\x0b2\x18.throttlekit.v'
    b'1.DecisionR\x08decision"v\n\x0cAdmitRequest\x12\x16\n\x06policy\x18\x01'
    b' \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x12\n\x04cost\x18\x03 \x01(\x03R\x04co'
    b'st\x12\x12\n\x04hold\x18\x04 \x01(\x03R\x04hold\x12\x14\n\x05value\x18\x05 \x01(\x03R\x05value"\xd2\x01\n'
    b'\rAdmitResponse\x124\n\x08decision\x18\x01 \x01(\x0b2\x18.throttlekit.v'
    b'1.DecisionR\x08decision\x12\x19\n\x08lease_id\x18\x02 \x01(\tR\x07leaseId\x12'
    b'(\n\x10lease_expires_at\x18\x03 \x01(\x03R\x0eleaseExpiresAt\x12!\n\x0cbin'
    b'ding_axis\x18\x04 \x01(\tR\x0bbindingAxis\x12#\n\rpolicy_denied\x18\x05 '
    b'\x01(\x08R\x0cpolicyDenied"E\n\x0eReleaseRequest\x12\x19\n\x08lease_id\x18'
    b'\x01 \x01(\tR\x07leaseId\x12\x18\n\x07dropped\x18\x02 \x01(\x08R\x07dropped"\x11\n\x0fRele'
    b'aseResponse"/\n\x10HeartbeatRequest\x12\x1b\n\tlease_ids\x18\x01 \x03'
    b'(\tR\x08leaseIds"x\n\x11HeartbeatResponse\x12\x19\n\x08live_ids\x18\x01 '
    b'\x03(\tR\x07liveIds\x12#\n\rreclaimed_ids\x18\x02 \x03(\tR\x0creclaimedId'
    b's\x12#\n\rnext_deadline\x18\x03 \x01(\x03R\x0cnextDeadline2\xe1\x04\n\x0bRateL'
    b'imiter\x12D\n\x05Check\x12\x1c.throttlekit.v1.CheckRequest\x1a\x1d.'
    b'throttlekit.v1.CheckResponse\x12P\n\tCheckMany\x12 .thro'
    b'ttlekit.v1.CheckManyRequest\x1a!.throttlekit.v1.Che'
    b'ckManyResponse\x12A\n\x04Peek\x12\x1b.throttlekit.v1.PeekRequ'
    b'est\x1a\x1c.throttlekit.v1.PeekResponse\x12M\n\x08Forecast\x12\x1f.'
    b'throttlekit.v1.ForecastRequest\x1a .throttlekit.v1.'
    b'ForecastResponse\x12D\n\x05Debit\x12\x1c.throttlekit.v1.Debit'
    b'Request\x1a\x1d.throttlekit.v1.DebitResponse\x12D\n\x05Admit\x12'
    b'\x1c.throttlekit.v1.AdmitRequest\x1a\x1d.throttlekit.v1.A'
    b'dmitResponse\x12J\n\x07Release\x12\x1e.throttlekit.v1.Release'
    b'Request\x1a\x1f.throttlekit.v1.ReleaseResponse\x12P\n\tHear'
    b'tbeat\x12 .throttlekit.v1.HeartbeatRequest\x1a!.thrott'
    b'lekit.v1.HeartbeatResponseb\x06proto3'
)
DESCRIPTOR = POOL.FindFileByName('throttlekit/v1/rate_limiter.proto')

Decision = GetMessageClass(DESCRIPTOR.message_types_by_name['Decision'])
CheckRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['CheckRequest'])
CheckResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['CheckResponse'])
CheckManyRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['CheckManyRequest'])
CheckManyResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['CheckManyResponse'])
PeekRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['PeekRequest'])
PeekResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['PeekResponse'])
ForecastRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['ForecastRequest'])
ForecastResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['ForecastResponse'])
Forecast = GetMessageClass(DESCRIPTOR.message_types_by_name['Forecast'])
DebitRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['DebitRequest'])
DebitResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['DebitResponse'])
AdmitRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['AdmitRequest'])
AdmitResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['AdmitResponse'])
ReleaseRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['ReleaseRequest'])
ReleaseResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['ReleaseResponse'])
HeartbeatRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['HeartbeatRequest'])
HeartbeatResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['HeartbeatResponse'])
