"""Messages, from throttlekit/v1/fleet.proto by `python -m tools.wire.protos`. Not to be edited."""

# fmt: off
# ruff: noqa
from collections.abc import Iterable

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.internal.containers import RepeatedScalarFieldContainer
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor

AXIS_UNSPECIFIED: int
AXIS_RATE: int
AXIS_CONCURRENCY: int
AXIS_TOKEN_BUDGET: int
class Caller(Message):
    domain: str
    client_id: str
    region: str
    priority: int
    def __init__(self, *, domain: str | None = ..., client_id: str | None = ..., region: str | None = ..., priority: int | None = ...) -> None: ...

class ReserveRequest(Message):
    policy: str
    caller: Caller
    wants: int
    has: int
    used: int
    axis: int
    def __init__(self, *, policy: str | None = ..., caller: Caller | None = ..., wants: int | None = ..., has: int | None = ..., used: int | None = ..., axis: int | None = ...) -> None: ...

class Lease(Message):
    capacity: int
    expiry_ms: int
    refresh_interval_ms: int
    safe_capacity: int
    retry_after_ms: int
    limit: int
    degraded: str
    def __init__(self, *, capacity: int | None = ..., expiry_ms: int | None = ..., refresh_interval_ms: int | None = ..., safe_capacity: int | None = ..., retry_after_ms: int | None = ..., limit: int | None = ..., degraded: str | None = ...) -> None: ...

class ReserveResponse(Message):
    lease: Lease
    def __init__(self, *, lease: Lease | None = ...) -> None: ...
