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
    b'\x03R\x0cretryAfterMsJ\x04\x08\x06\x10\x10"K\n\tAttribute\x12\x12\n\x04name\x18\x01 \x01(\t'
    b'R\x04name\x12\x12\n\x04text\x18\x02 \x01(\tR\x04text\x12\x16\n\x06number\x18\x03 \x01(\x03R\x06numb'
    b'er"q\n\rLimitDecision\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x124\n\x08decis'
    b'ion\x18\x02 \x01(\x0b2\x18.throttlekit.v1.DecisionR\x08decision\x12\x16\n'
    b'\x06shadow\x18\x03 \x01(\x08R\x06shadow"\x87\x01\n\x0cCheckRequest\x12\x16\n\x06policy'
    b'\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x12\n\x04cost\x18\x03 \x01(\x03R\x04'
    b'cost\x129\n\nattributes\x18\x10 \x03(\x0b2\x19.throttlekit.v1.Attrib'
    b'uteR\nattributes"\xce\x01\n\rCheckResponse\x124\n\x08decision\x18\x01 '
    b'\x01(\x0b2\x18.throttlekit.v1.DecisionR\x08decision\x125\n\x06limit'
    b's\x18\x10 \x03(\x0b2\x1d.throttlekit.v1.LimitDecisionR\x06limits\x12\x18'
    b'\n\x07binding\x18\x11 \x01(\tR\x07binding\x12\x1a\n\x08violated\x18\x12 \x03(\tR\x08viol'
    b'ated\x12\x1a\n\x08shadowed\x18\x13 \x03(\tR\x08shadowed"R\n\x10CheckManyReq'
    b'uest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x12\n\x04keys\x18\x02 \x03(\tR\x04keys'
    b'\x12\x12\n\x04cost\x18\x03 \x01(\x03R\x04cost"K\n\x11CheckManyResponse\x126\n\tdec'
    b'isions\x18\x01 \x03(\x0b2\x18.throttlekit.v1.DecisionR\tdecision'
    b's"r\n\x0bPeekRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18'
    b'\x02 \x01(\tR\x03key\x129\n\nattributes\x18\x10 \x03(\x0b2\x19.throttlekit.v1.'
    b'AttributeR\nattributes"\xcd\x01\n\x0cPeekResponse\x124\n\x08decisi'
    b'on\x18\x01 \x01(\x0b2\x18.throttlekit.v1.DecisionR\x08decision\x125\n\x06'
    b'limits\x18\x10 \x03(\x0b2\x1d.throttlekit.v1.LimitDecisionR\x06lim'
    b'its\x12\x18\n\x07binding\x18\x11 \x01(\tR\x07binding\x12\x1a\n\x08violated\x18\x12 \x03(\tR'
    b'\x08violated\x12\x1a\n\x08shadowed\x18\x13 \x03(\tR\x08shadowed"\x8a\x01\n\x0fForeca'
    b'stRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03'
    b'key\x12\x12\n\x04cost\x18\x03 \x01(\x03R\x04cost\x129\n\nattributes\x18\x10 \x03(\x0b2\x19.th'
    b'rottlekit.v1.AttributeR\nattributes"H\n\x10ForecastRe'
    b'sponse\x124\n\x08forecast\x18\x01 \x01(\x0b2\x18.throttlekit.v1.Foreca'
    b'stR\x08forecast"t\n\x08Forecast\x12#\n\rspendable_now\x18\x01 \x01(\x03R'
    b'\x0cspendableNow\x12*\n\x11next_replenish_at\x18\x02 \x01(\x03R\x0fnextRe'
    b'plenishAt\x12\x17\n\x07full_at\x18\x03 \x01(\x03R\x06fullAt"P\n\x0cDebitReque'
    b'st\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x16\n\x06'
    b'tokens\x18\x03 \x01(\x03R\x06tokens"E\n\rDebitResponse\x124\n\x08decisio'
    b'n\x18\x01 \x01(\x0b2\x18.throttlekit.v1.DecisionR\x08decision"v\n\x0cA'
    b'dmitRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\t'
    b'R\x03key\x12\x12\n\x04cost\x18\x03 \x01(\x03R\x04cost\x12\x12\n\x04hold\x18\x04 \x01(\x03R\x04hold\x12\x14\n'
    b'\x05value\x18\x05 \x01(\x03R\x05value"\xd2\x01\n\rAdmitResponse\x124\n\x08decisio'
    b'n\x18\x01 \x01(\x0b2\x18.throttlekit.v1.DecisionR\x08decision\x12\x19\n\x08l'
    b'ease_id\x18\x02 \x01(\tR\x07leaseId\x12(\n\x10lease_expires_at\x18\x03 \x01(\x03'
    b'R\x0eleaseExpiresAt\x12!\n\x0cbinding_axis\x18\x04 \x01(\tR\x0bbindingA'
    b'xis\x12#\n\rpolicy_denied\x18\x05 \x01(\x08R\x0cpolicyDenied"E\n\x0eRele'
    b'aseRequest\x12\x19\n\x08lease_id\x18\x01 \x01(\tR\x07leaseId\x12\x18\n\x07dropped'
    b'\x18\x02 \x01(\x08R\x07dropped"\x11\n\x0fReleaseResponse"/\n\x10HeartbeatR'
    b'equest\x12\x1b\n\tlease_ids\x18\x01 \x03(\tR\x08leaseIds"x\n\x11Heartbeat'
    b'Response\x12\x19\n\x08live_ids\x18\x01 \x03(\tR\x07liveIds\x12#\n\rreclaimed'
    b'_ids\x18\x02 \x03(\tR\x0creclaimedIds\x12#\n\rnext_deadline\x18\x03 \x01(\x03R'
    b'\x0cnextDeadline"\xa8\x01\n\rChargeRequest\x12\x16\n\x06policy\x18\x01 \x01(\tR'
    b'\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x12\n\x04cost\x18\x03 \x01(\x03R\x04cost\x129\n'
    b'\nattributes\x18\x04 \x03(\x0b2\x19.throttlekit.v1.AttributeR\nat'
    b'tributes\x12\x1e\n\x0bmax_wait_ms\x18\x05 \x01(\x03R\tmaxWaitMs"\x89\x02\n\x0eCha'
    b'rgeResponse\x124\n\x08decision\x18\x01 \x01(\x0b2\x18.throttlekit.v1.D'
    b'ecisionR\x08decision\x12\x1b\n\tcharge_id\x18\x02 \x01(\tR\x08chargeId\x12\x1b'
    b'\n\tstarts_at\x18\x03 \x01(\x03R\x08startsAt\x125\n\x06limits\x18\x04 \x03(\x0b2\x1d.th'
    b'rottlekit.v1.LimitDecisionR\x06limits\x12\x18\n\x07binding\x18\x05 '
    b'\x01(\tR\x07binding\x12\x1a\n\x08violated\x18\x06 \x03(\tR\x08violated\x12\x1a\n\x08shad'
    b'owed\x18\x07 \x03(\tR\x08shadowed"8\n\nLimitUnits\x12\x14\n\x05limit\x18\x01 \x01('
    b'\tR\x05limit\x12\x14\n\x05units\x18\x02 \x01(\x03R\x05units"\x9c\x01\n\rSettleRequest'
    b'\x12\x1b\n\tcharge_id\x18\x01 \x01(\tR\x08chargeId\x12\x16\n\x06actual\x18\x02 \x01(\x03R\x06a'
    b'ctual\x125\n\x08by_limit\x18\x03 \x03(\x0b2\x1a.throttlekit.v1.LimitUn'
    b'itsR\x07byLimit\x12\x1f\n\x0bas_reserved\x18\x04 \x01(\x08R\nasReserved"*\n'
    b'\x0eSettleResponse\x12\x18\n\x07settled\x18\x01 \x01(\x08R\x07settled",\n\rCan'
    b'celRequest\x12\x1b\n\tcharge_id\x18\x01 \x01(\tR\x08chargeId".\n\x0eCance'
    b'lResponse\x12\x1c\n\tcancelled\x18\x01 \x01(\x08R\tcancelled"+\n\x0cRenew'
    b'Request\x12\x1b\n\tcharge_id\x18\x01 \x01(\tR\x08chargeId"#\n\rRenewRes'
    b'ponse\x12\x12\n\x04held\x18\x01 \x01(\x08R\x04held"\xa6\x01\n\x0cPauseRequest\x12\x16\n\x06po'
    b'licy\x18\x01 \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x129\n\nattribut'
    b'es\x18\x03 \x03(\x0b2\x19.throttlekit.v1.AttributeR\nattributes\x12'
    b'\x16\n\x06limits\x18\x04 \x03(\tR\x06limits\x12\x19\n\x08until_ms\x18\x05 \x01(\x03R\x07until'
    b'Ms"\x0f\n\rPauseResponse"\x8b\x01\n\x0cResetRequest\x12\x16\n\x06policy\x18\x01'
    b' \x01(\tR\x06policy\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x129\n\nattributes\x18\x03 \x03'
    b'(\x0b2\x19.throttlekit.v1.AttributeR\nattributes\x12\x16\n\x06lim'
    b'its\x18\x04 \x03(\tR\x06limits"\x0f\n\rResetResponse2\xe1\x04\n\x0bRateLimit'
    b'er\x12D\n\x05Check\x12\x1c.throttlekit.v1.CheckRequest\x1a\x1d.thro'
    b'ttlekit.v1.CheckResponse\x12P\n\tCheckMany\x12 .throttle'
    b'kit.v1.CheckManyRequest\x1a!.throttlekit.v1.CheckMa'
    b'nyResponse\x12A\n\x04Peek\x12\x1b.throttlekit.v1.PeekRequest\x1a'
    b'\x1c.throttlekit.v1.PeekResponse\x12M\n\x08Forecast\x12\x1f.thro'
    b'ttlekit.v1.ForecastRequest\x1a .throttlekit.v1.Fore'
    b'castResponse\x12D\n\x05Debit\x12\x1c.throttlekit.v1.DebitRequ'
    b'est\x1a\x1d.throttlekit.v1.DebitResponse\x12D\n\x05Admit\x12\x1c.th'
    b'rottlekit.v1.AdmitRequest\x1a\x1d.throttlekit.v1.Admit'
    b'Response\x12J\n\x07Release\x12\x1e.throttlekit.v1.ReleaseRequ'
    b'est\x1a\x1f.throttlekit.v1.ReleaseResponse\x12P\n\tHeartbea'
    b't\x12 .throttlekit.v1.HeartbeatRequest\x1a!.throttleki'
    b't.v1.HeartbeatResponse2\xb7\x03\n\x07Charges\x12H\n\x07Reserve\x12\x1d.'
    b'throttlekit.v1.ChargeRequest\x1a\x1e.throttlekit.v1.Ch'
    b'argeResponse\x12G\n\x06Settle\x12\x1d.throttlekit.v1.SettleRe'
    b'quest\x1a\x1e.throttlekit.v1.SettleResponse\x12G\n\x06Cancel\x12'
    b'\x1d.throttlekit.v1.CancelRequest\x1a\x1e.throttlekit.v1.'
    b'CancelResponse\x12D\n\x05Renew\x12\x1c.throttlekit.v1.RenewRe'
    b'quest\x1a\x1d.throttlekit.v1.RenewResponse\x12D\n\x05Pause\x12\x1c.'
    b'throttlekit.v1.PauseRequest\x1a\x1d.throttlekit.v1.Pau'
    b'seResponse\x12D\n\x05Reset\x12\x1c.throttlekit.v1.ResetReques'
    b't\x1a\x1d.throttlekit.v1.ResetResponseb\x06proto3'
)
DESCRIPTOR = POOL.FindFileByName('throttlekit/v1/rate_limiter.proto')

Decision = GetMessageClass(DESCRIPTOR.message_types_by_name['Decision'])
Attribute = GetMessageClass(DESCRIPTOR.message_types_by_name['Attribute'])
LimitDecision = GetMessageClass(DESCRIPTOR.message_types_by_name['LimitDecision'])
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
ChargeRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['ChargeRequest'])
ChargeResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['ChargeResponse'])
LimitUnits = GetMessageClass(DESCRIPTOR.message_types_by_name['LimitUnits'])
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
