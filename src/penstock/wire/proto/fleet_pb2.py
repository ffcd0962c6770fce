"""Messages, from throttlekit/v1/fleet.proto by `python -m tools.wire.protos`. Not to be edited."""

# fmt: off
# ruff: noqa
from google.protobuf.message_factory import GetMessageClass

from . import POOL

POOL.AddSerializedFile(
    b'\n\x1athrottlekit/v1/fleet.proto\x12\x0ethrottlekit.v1"q\n\x06'
    b'Caller\x12\x16\n\x06domain\x18\x01 \x01(\tR\x06domain\x12\x1b\n\tclient_id\x18\x02 \x01('
    b'\tR\x08clientId\x12\x16\n\x06region\x18\x03 \x01(\tR\x06region\x12\x1a\n\x08priority\x18'
    b'\x04 \x01(\x03R\x08priority"\xbe\x01\n\x0eReserveRequest\x12\x16\n\x06policy\x18\x01 \x01'
    b'(\tR\x06policy\x12.\n\x06caller\x18\x02 \x01(\x0b2\x16.throttlekit.v1.Call'
    b'erR\x06caller\x12\x14\n\x05wants\x18\x03 \x01(\x03R\x05wants\x12\x10\n\x03has\x18\x04 \x01(\x03R\x03h'
    b'as\x12\x12\n\x04used\x18\x05 \x01(\x03R\x04used\x12(\n\x04axis\x18\x06 \x01(\x0e2\x14.throttlek'
    b'it.v1.AxisR\x04axis"\xed\x01\n\x05Lease\x12\x1a\n\x08capacity\x18\x01 \x01(\x03R\x08ca'
    b'pacity\x12\x1b\n\texpiry_ms\x18\x02 \x01(\x03R\x08expiryMs\x12.\n\x13refresh_i'
    b'nterval_ms\x18\x03 \x01(\x03R\x11refreshIntervalMs\x12#\n\rsafe_capa'
    b'city\x18\x04 \x01(\x03R\x0csafeCapacity\x12$\n\x0eretry_after_ms\x18\x05 \x01(\x03'
    b'R\x0cretryAfterMs\x12\x14\n\x05limit\x18\x06 \x01(\x03R\x05limit\x12\x1a\n\x08degraded'
    b'\x18\x10 \x01(\tR\x08degraded"T\n\x0fReserveResponse\x12+\n\x05lease\x18\x01 \x01'
    b'(\x0b2\x15.throttlekit.v1.LeaseR\x05leaseJ\x04\x08\x02\x10\x10R\x0eowner_re'
    b'direct*X\n\x04Axis\x12\x14\n\x10AXIS_UNSPECIFIED\x10\x00\x12\r\n\tAXIS_RAT'
    b'E\x10\x01\x12\x14\n\x10AXIS_CONCURRENCY\x10\x02\x12\x15\n\x11AXIS_TOKEN_BUDGET\x10\x03'
    b'2S\n\x05Fleet\x12J\n\x07Reserve\x12\x1e.throttlekit.v1.ReserveReq'
    b'uest\x1a\x1f.throttlekit.v1.ReserveResponseb\x06proto3'
)
DESCRIPTOR = POOL.FindFileByName('throttlekit/v1/fleet.proto')

Caller = GetMessageClass(DESCRIPTOR.message_types_by_name['Caller'])
ReserveRequest = GetMessageClass(DESCRIPTOR.message_types_by_name['ReserveRequest'])
Lease = GetMessageClass(DESCRIPTOR.message_types_by_name['Lease'])
ReserveResponse = GetMessageClass(DESCRIPTOR.message_types_by_name['ReserveResponse'])
AXIS_UNSPECIFIED = 0
AXIS_RATE = 1
AXIS_CONCURRENCY = 2
AXIS_TOKEN_BUDGET = 3
