"""Messages, from throttlekit/v1/rate_limiter.proto by `python -m tools.wire.protos`. Not to be edited."""

# fmt: off
# ruff: noqa
from collections.abc import Iterable

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.internal.containers import RepeatedScalarFieldContainer
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor

class Decision(Message):
    allowed: bool
    limit: int
    remaining: int
    reset_at: int
    retry_after_ms: int
    def __init__(self, *, allowed: bool | None = ..., limit: int | None = ..., remaining: int | None = ..., reset_at: int | None = ..., retry_after_ms: int | None = ...) -> None: ...

class CheckRequest(Message):
    policy: str
    key: str
    cost: int
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., cost: int | None = ...) -> None: ...

class CheckResponse(Message):
    decision: Decision
    def __init__(self, *, decision: Decision | None = ...) -> None: ...

class CheckManyRequest(Message):
    policy: str
    keys: RepeatedScalarFieldContainer[str]
    cost: int
    def __init__(self, *, policy: str | None = ..., keys: Iterable[str] = ..., cost: int | None = ...) -> None: ...

class CheckManyResponse(Message):
    decisions: RepeatedCompositeFieldContainer[Decision]
    def __init__(self, *, decisions: Iterable[Decision] = ...) -> None: ...

class PeekRequest(Message):
    policy: str
    key: str
    def __init__(self, *, policy: str | None = ..., key: str | None = ...) -> None: ...

class PeekResponse(Message):
    decision: Decision
    def __init__(self, *, decision: Decision | None = ...) -> None: ...

class ForecastRequest(Message):
    policy: str
    key: str
    cost: int
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., cost: int | None = ...) -> None: ...

class ForecastResponse(Message):
    forecast: Forecast
    def __init__(self, *, forecast: Forecast | None = ...) -> None: ...

class Forecast(Message):
    spendable_now: int
    next_replenish_at: int
    full_at: int
    def __init__(self, *, spendable_now: int | None = ..., next_replenish_at: int | None = ..., full_at: int | None = ...) -> None: ...

class DebitRequest(Message):
    policy: str
    key: str
    tokens: int
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., tokens: int | None = ...) -> None: ...

class DebitResponse(Message):
    decision: Decision
    def __init__(self, *, decision: Decision | None = ...) -> None: ...

class AdmitRequest(Message):
    policy: str
    key: str
    cost: int
    hold: int
    value: int
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., cost: int | None = ..., hold: int | None = ..., value: int | None = ...) -> None: ...

class AdmitResponse(Message):
    decision: Decision
    lease_id: str
    lease_expires_at: int
    binding_axis: str
    policy_denied: bool
    def __init__(self, *, decision: Decision | None = ..., lease_id: str | None = ..., lease_expires_at: int | None = ..., binding_axis: str | None = ..., policy_denied: bool | None = ...) -> None: ...

class ReleaseRequest(Message):
    lease_id: str
    dropped: bool
    def __init__(self, *, lease_id: str | None = ..., dropped: bool | None = ...) -> None: ...

class ReleaseResponse(Message):
    def __init__(self) -> None: ...

class HeartbeatRequest(Message):
    lease_ids: RepeatedScalarFieldContainer[str]
    def __init__(self, *, lease_ids: Iterable[str] = ...) -> None: ...

class HeartbeatResponse(Message):
    live_ids: RepeatedScalarFieldContainer[str]
    reclaimed_ids: RepeatedScalarFieldContainer[str]
    next_deadline: int
    def __init__(self, *, live_ids: Iterable[str] = ..., reclaimed_ids: Iterable[str] = ..., next_deadline: int | None = ...) -> None: ...
