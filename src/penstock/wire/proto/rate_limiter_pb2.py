"""Messages, from throttlekit/v1/rate_limiter.proto by `python -m tools.wire.protos`. Not to be edited."""

# fmt: off
# ruff: noqa
from google.protobuf.message_factory import GetMessageClass

from . import POOL

POOL.AddSerializedFile(
    b'\n!throttlekit/v1/rate_limiter.proto\x12\x0ethrottlekit'
    b'.v1"\xbb\x01\n\x08Decision\x12\x18\n\x07allowed\x18\x01 \x01(\x08R\x07allowed\x12\x14\n\x05li'
    b'mit\x18\x02 \x01(\x03R\x05limit\x12\x1c\n\tremaining\x18\x03 \x01(\x03R\tremaining\x12\x19'
    b'\n\x08reset_at\x18\x04 \x01(\x03R\x07resetAt\x12$\n\x0eretry_after_ms\x18\x05 \x01('
    b'\x03R\x0cretryAfterMs\x12\x1a\n\x08degraded\x18\x10 \x01(\tR\x08degradedJ\x04\x08\x06\x10'
    b'\x10"K\n\tAttribute\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x12\n\x04text\x18\x02 \x01(\t'
    b'R\x04text\x12\x16\n\x06number\x18\x03 \x01(\x03R\x06number"8\n\nLimitUnits\x12\x14\n\x05'
    b'limit\x18\x01 \x01(\tR\x05limit\x12\x14\n\x05units\x18\x02 \x01(\x03R\x05units"q\n\rLimi'
    b'tDecision\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x124\n\x08decision\x18\x02 \x01(\x0b2'
    b'\x18.throttlekit.v1.DecisionR\x08decision\x12\x16\n\x06shadow\x18\x03 '
    b'\x01(\x08R\x06shadow"\xb9\x01\n\x0cCheckRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06po'
    b'licy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x12\n\x04cost\x18\x03 \x01(\x03R\x04cost\x129\n\nat'
    b'tributes\x18\x10 \x03(\x0b2\x19.throttlekit.v1.AttributeR\nattri'
    b'butes\x120\n\x05costs\x18\x11 \x03(\x0b2\x1a.throttlekit.v1.LimitUnits'
    b'R\x05costs"\xce\x01\n\rCheckResponse\x124\n\x08decision\x18\x01 \x01(\x0b2\x18.th'
    b'rottlekit.v1.DecisionR\x08decision\x125\n\x06limits\x18\x10 \x03(\x0b2'
    b'\x1d.throttlekit.v1.LimitDecisionR\x06limits\x12\x18\n\x07bindin'
    b'g\x18\x11 \x01(\tR\x07binding\x12\x1a\n\x08violated\x18\x12 \x03(\tR\x08violated\x12\x1a\n\x08'
    b'shadowed\x18\x13 \x03(\tR\x08shadowed"\xc3\x01\n\x10CheckManyRequest\x12\x16\n'
    b'\x06policy\x18\x01 \x01(\tR\x06policy\x12\x12\n\x04keys\x18\x02 \x03(\tR\x04keys\x12\x12\n\x04cos'
    b't\x18\x03 \x01(\x03R\x04cost\x12=\n\x08requests\x18\x10 \x03(\x0b2!.throttlekit.v1'
    b'.RequestAttributesR\x08requests\x120\n\x05costs\x18\x11 \x03(\x0b2\x1a.th'
    b'rottlekit.v1.LimitUnitsR\x05costs"N\n\x11RequestAttribu'
    b'tes\x129\n\nattributes\x18\x01 \x03(\x0b2\x19.throttlekit.v1.Attribu'
    b'teR\nattributes"\x86\x01\n\x11CheckManyResponse\x126\n\tdecision'
    b's\x18\x01 \x03(\x0b2\x18.throttlekit.v1.DecisionR\tdecisions\x129\n\x08'
    b'verdicts\x18\x10 \x03(\x0b2\x1d.throttlekit.v1.CheckResponseR\x08v'
    b'erdicts"r\n\x0bPeekRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10'
    b'\n\x03key\x18\x02 \x01(\tR\x03key\x129\n\nattributes\x18\x10 \x03(\x0b2\x19.throttlek'
    b'it.v1.AttributeR\nattributes"\xcd\x01\n\x0cPeekResponse\x124\n\x08'
    b'decision\x18\x01 \x01(\x0b2\x18.throttlekit.v1.DecisionR\x08decisi'
    b'on\x125\n\x06limits\x18\x10 \x03(\x0b2\x1d.throttlekit.v1.LimitDecisio'
    b'nR\x06limits\x12\x18\n\x07binding\x18\x11 \x01(\tR\x07binding\x12\x1a\n\x08violated\x18'
    b'\x12 \x03(\tR\x08violated\x12\x1a\n\x08shadowed\x18\x13 \x03(\tR\x08shadowed"\xbc\x01\n\x0f'
    b'ForecastRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02'
    b' \x01(\tR\x03key\x12\x12\n\x04cost\x18\x03 \x01(\x03R\x04cost\x129\n\nattributes\x18\x10 \x03('
    b'\x0b2\x19.throttlekit.v1.AttributeR\nattributes\x120\n\x05cost'
    b's\x18\x11 \x03(\x0b2\x1a.throttlekit.v1.LimitUnitsR\x05costs"H\n\x10Fo'
    b'recastResponse\x124\n\x08forecast\x18\x01 \x01(\x0b2\x18.throttlekit.v'
    b'1.ForecastR\x08forecast"\x90\x01\n\x08Forecast\x12#\n\rspendable_n'
    b'ow\x18\x01 \x01(\x03R\x0cspendableNow\x12*\n\x11next_replenish_at\x18\x02 \x01('
    b'\x03R\x0fnextReplenishAt\x12\x17\n\x07full_at\x18\x03 \x01(\x03R\x06fullAt\x12\x1a\n\x08d'
    b'egraded\x18\x10 \x01(\tR\x08degraded"P\n\x0cDebitRequest\x12\x16\n\x06polic'
    b'y\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x16\n\x06tokens\x18\x03 \x01('
    b'\x03R\x06tokens"E\n\rDebitResponse\x124\n\x08decision\x18\x01 \x01(\x0b2\x18.t'
    b'hrottlekit.v1.DecisionR\x08decision"v\n\x0cAdmitRequest'
    b'\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x12\n\x04co'
    b'st\x18\x03 \x01(\x03R\x04cost\x12\x12\n\x04hold\x18\x04 \x01(\x03R\x04hold\x12\x14\n\x05value\x18\x05 \x01('
    b'\x03R\x05value"\xd2\x01\n\rAdmitResponse\x124\n\x08decision\x18\x01 \x01(\x0b2\x18.t'
    b'hrottlekit.v1.DecisionR\x08decision\x12\x19\n\x08lease_id\x18\x02 \x01'
    b'(\tR\x07leaseId\x12(\n\x10lease_expires_at\x18\x03 \x01(\x03R\x0eleaseExpi'
    b'resAt\x12!\n\x0cbinding_axis\x18\x04 \x01(\tR\x0bbindingAxis\x12#\n\rpoli'
    b'cy_denied\x18\x05 \x01(\x08R\x0cpolicyDenied"E\n\x0eReleaseRequest\x12'
    b'\x19\n\x08lease_id\x18\x01 \x01(\tR\x07leaseId\x12\x18\n\x07dropped\x18\x02 \x01(\x08R\x07dro'
    b'pped"\x11\n\x0fReleaseResponse"/\n\x10HeartbeatRequest\x12\x1b\n\tl'
    b'ease_ids\x18\x01 \x03(\tR\x08leaseIds"\x94\x01\n\x11HeartbeatResponse\x12\x19'
    b'\n\x08live_ids\x18\x01 \x03(\tR\x07liveIds\x12#\n\rreclaimed_ids\x18\x02 \x03(\t'
    b'R\x0creclaimedIds\x12#\n\rnext_deadline\x18\x03 \x01(\x03R\x0cnextDeadl'
    b'ine\x12\x1a\n\x08degraded\x18\x10 \x01(\tR\x08degraded"\xda\x01\n\rChargeReques'
    b't\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x12\n\x04c'
    b'ost\x18\x03 \x01(\x03R\x04cost\x129\n\nattributes\x18\x04 \x03(\x0b2\x19.throttleki'
    b't.v1.AttributeR\nattributes\x12\x1e\n\x0bmax_wait_ms\x18\x05 \x01(\x03R'
    b'\tmaxWaitMs\x120\n\x05costs\x18\x10 \x03(\x0b2\x1a.throttlekit.v1.Limit'
    b'UnitsR\x05costs"\xbf\x02\n\x0eChargeResponse\x124\n\x08decision\x18\x01 \x01('
    b'\x0b2\x18.throttlekit.v1.DecisionR\x08decision\x12\x1b\n\tcharge_'
    b'id\x18\x02 \x01(\tR\x08chargeId\x12\x1b\n\tstarts_at\x18\x03 \x01(\x03R\x08startsAt\x12'
    b'5\n\x06limits\x18\x04 \x03(\x0b2\x1d.throttlekit.v1.LimitDecisionR\x06'
    b'limits\x12\x18\n\x07binding\x18\x05 \x01(\tR\x07binding\x12\x1a\n\x08violated\x18\x06 \x03'
    b'(\tR\x08violated\x12\x1a\n\x08shadowed\x18\x07 \x03(\tR\x08shadowed\x12\x1d\n\nchar'
    b'ged_at\x18\x08 \x01(\x03R\tchargedAt\x12\x15\n\x06ttl_ms\x18\t \x01(\x03R\x05ttlMs"\x9c'
    b'\x01\n\rSettleRequest\x12\x1b\n\tcharge_id\x18\x01 \x01(\tR\x08chargeId\x12\x16\n'
    b'\x06actual\x18\x02 \x01(\x03R\x06actual\x125\n\x08by_limit\x18\x03 \x03(\x0b2\x1a.thrott'
    b'lekit.v1.LimitUnitsR\x07byLimit\x12\x1f\n\x0bas_reserved\x18\x04 \x01('
    b'\x08R\nasReserved"d\n\x0eSettleResponse\x12\x18\n\x07settled\x18\x01 \x01(\x08'
    b'R\x07settled\x128\n\tuncharged\x18\x02 \x03(\x0b2\x1a.throttlekit.v1.Li'
    b'mitUnitsR\tuncharged",\n\rCancelRequest\x12\x1b\n\tcharge_i'
    b'd\x18\x01 \x01(\tR\x08chargeId".\n\x0eCancelResponse\x12\x1c\n\tcancelled'
    b'\x18\x01 \x01(\x08R\tcancelled"+\n\x0cRenewRequest\x12\x1b\n\tcharge_id\x18\x01'
    b' \x01(\tR\x08chargeId"#\n\rRenewResponse\x12\x12\n\x04held\x18\x01 \x01(\x08R\x04h'
    b'eld"\xa6\x01\n\x0cPauseRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03'
    b'key\x18\x02 \x01(\tR\x03key\x129\n\nattributes\x18\x03 \x03(\x0b2\x19.throttlekit'
    b'.v1.AttributeR\nattributes\x12\x16\n\x06limits\x18\x04 \x03(\tR\x06limit'
    b's\x12\x19\n\x08until_ms\x18\x05 \x01(\x03R\x07untilMs"\x0f\n\rPauseResponse"\x8b\x01'
    b'\n\x0cResetRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 '
    b'\x01(\tR\x03key\x129\n\nattributes\x18\x03 \x03(\x0b2\x19.throttlekit.v1.At'
    b'tributeR\nattributes\x12\x16\n\x06limits\x18\x04 \x03(\tR\x06limits"\x0f\n\rR'
    b'esetResponse2\xe1\x04\n\x0bRateLimiter\x12D\n\x05Check\x12\x1c.throttle'
    b'kit.v1.CheckRequest\x1a\x1d.throttlekit.v1.CheckRespon'
    b'se\x12P\n\tCheckMany\x12 .throttlekit.v1.CheckManyReques'
    b't\x1a!.throttlekit.v1.CheckManyResponse\x12A\n\x04Peek\x12\x1b.t'
    b'hrottlekit.v1.PeekRequest\x1a\x1c.throttlekit.v1.PeekR'
    b'esponse\x12M\n\x08Forecast\x12\x1f.throttlekit.v1.ForecastReq'
    b'uest\x1a .throttlekit.v1.ForecastResponse\x12D\n\x05Debit\x12'
    b'\x1c.throttlekit.v1.DebitRequest\x1a\x1d.throttlekit.v1.D'
    b'ebitResponse\x12D\n\x05Admit\x12\x1c.throttlekit.v1.AdmitRequ'
    b'est\x1a\x1d.throttlekit.v1.AdmitResponse\x12J\n\x07Release\x12\x1e.'
    b'throttlekit.v1.ReleaseRequest\x1a\x1f.throttlekit.v1.R'
    b'eleaseResponse\x12P\n\tHeartbeat\x12 .throttlekit.v1.Hea'
    b'rtbeatRequest\x1a!.throttlekit.v1.HeartbeatResponse'
    b'2\xb7\x03\n\x07Charges\x12H\n\x07Reserve\x12\x1d.throttlekit.v1.ChargeR'
    b'equest\x1a\x1e.throttlekit.v1.ChargeResponse\x12G\n\x06Settle'
    b'\x12\x1d.throttlekit.v1.SettleRequest\x1a\x1e.throttlekit.v1'
    b'.SettleResponse\x12G\n\x06Cancel\x12\x1d.throttlekit.v1.Cance'
    b'lRequest\x1a\x1e.throttlekit.v1.CancelResponse\x12D\n\x05Rene'
    b'w\x12\x1c.throttlekit.v1.RenewRequest\x1a\x1d.throttlekit.v1'
    b'.RenewResponse\x12D\n\x05Pause\x12\x1c.throttlekit.v1.PauseRe'
    b'quest\x1a\x1d.throttlekit.v1.PauseResponse\x12D\n\x05Reset\x12\x1c.'
    b'throttlekit.v1.ResetRequest\x1a\x1d.throttlekit.v1.Res'
    b'etResponseb\x06proto3'
)
DESCRIPTOR = POOL.FindFileByName('throttlekit/v1/rate_limiter.proto')

Decision = GetMessageClass(DESCRIPTOR.message_types_by_name['Decision'])
Attribute = GetMessageClass(DESCRIPTOR.message_types_by_name['Attribute'])
LimitUnits = GetMessageClass(DESCRIPTOR.message_types_by_name['LimitUnits'])
LimitDecision = GetMessageClass(DESCRIPTOR.message_types_by_name['LimitDecision'])
CheckRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['CheckRequest'])
CheckResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['CheckResponse'])
CheckManyRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['CheckManyRequest'])
RequestAttributes = GetMessageClass(DESCRIPTOR.message_types_by_name['RequestAttributes'])
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
ChargeRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['ChargeRequest'])
ChargeResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['ChargeResponse'])
SettleRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['SettleRequest'])
SettleResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['SettleResponse'])
CancelRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['CancelRequest'])
CancelResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['CancelResponse'])
RenewRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['RenewRequest'])
RenewResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['RenewResponse'])
PauseRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['PauseRequest'])
PauseResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['PauseResponse'])
ResetRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['ResetRequest'])
ResetResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['ResetResponse'])
