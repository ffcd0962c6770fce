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
    degraded: str
    def __init__(self, *, allowed: bool | None = ..., limit: int | None = ..., remaining: int | None = ..., reset_at: int | None = ..., retry_after_ms: int | None = ..., degraded: str | None = ...) -> None: ...

class Attribute(Message):
    name: str
    text: str
    number: int
    def __init__(self, *, name: str | None = ..., text: str | None = ..., number: int | None = ...) -> None: ...

class LimitUnits(Message):
    limit: str
    units: int
    def __init__(self, *, limit: str | None = ..., units: int | None = ...) -> None: ...

class LimitDecision(Message):
    name: str
    decision: Decision
    shadow: bool
    def __init__(self, *, name: str | None = ..., decision: Decision | None = ..., shadow: bool | None = ...) -> None: ...

class CheckRequest(Message):
    policy: str
    key: str
    cost: int
    attributes: RepeatedCompositeFieldContainer[Attribute]
    costs: RepeatedCompositeFieldContainer[LimitUnits]
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., cost: int | None = ..., attributes: Iterable[Attribute] = ..., costs: Iterable[LimitUnits] = ...) -> None: ...

class CheckResponse(Message):
    decision: Decision
    limits: RepeatedCompositeFieldContainer[LimitDecision]
    binding: str
    violated: RepeatedScalarFieldContainer[str]
    shadowed: RepeatedScalarFieldContainer[str]
    def __init__(self, *, decision: Decision | None = ..., limits: Iterable[LimitDecision] = ..., binding: str | None = ..., violated: Iterable[str] = ..., shadowed: Iterable[str] = ...) -> None: ...

class CheckManyRequest(Message):
    policy: str
    keys: RepeatedScalarFieldContainer[str]
    cost: int
    requests: RepeatedCompositeFieldContainer[RequestAttributes]
    costs: RepeatedCompositeFieldContainer[LimitUnits]
    def __init__(self, *, policy: str | None = ..., keys: Iterable[str] = ..., cost: int | None = ..., requests: Iterable[RequestAttributes] = ..., costs: Iterable[LimitUnits] = ...) -> None: ...

class RequestAttributes(Message):
    attributes: RepeatedCompositeFieldContainer[Attribute]
    def __init__(self, *, attributes: Iterable[Attribute] = ...) -> None: ...

class CheckManyResponse(Message):
    decisions: RepeatedCompositeFieldContainer[Decision]
    verdicts: RepeatedCompositeFieldContainer[CheckResponse]
    def __init__(self, *, decisions: Iterable[Decision] = ..., verdicts: Iterable[CheckResponse] = ...) -> None: ...

class PeekRequest(Message):
    policy: str
    key: str
    attributes: RepeatedCompositeFieldContainer[Attribute]
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., attributes: Iterable[Attribute] = ...) -> None: ...

class PeekResponse(Message):
    decision: Decision
    limits: RepeatedCompositeFieldContainer[LimitDecision]
    binding: str
    violated: RepeatedScalarFieldContainer[str]
    shadowed: RepeatedScalarFieldContainer[str]
    def __init__(self, *, decision: Decision | None = ..., limits: Iterable[LimitDecision] = ..., binding: str | None = ..., violated: Iterable[str] = ..., shadowed: Iterable[str] = ...) -> None: ...

class ForecastRequest(Message):
    policy: str
    key: str
    cost: int
    attributes: RepeatedCompositeFieldContainer[Attribute]
    costs: RepeatedCompositeFieldContainer[LimitUnits]
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., cost: int | None = ..., attributes: Iterable[Attribute] = ..., costs: Iterable[LimitUnits] = ...) -> None: ...

class ForecastResponse(Message):
    forecast: Forecast
    def __init__(self, *, forecast: Forecast | None = ...) -> None: ...

class Forecast(Message):
    spendable_now: int
    next_replenish_at: int
    full_at: int
    degraded: str
    def __init__(self, *, spendable_now: int | None = ..., next_replenish_at: int | None = ..., full_at: int | None = ..., degraded: str | None = ...) -> None: ...

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
    degraded: str
    def __init__(self, *, live_ids: Iterable[str] = ..., reclaimed_ids: Iterable[str] = ..., next_deadline: int | None = ..., degraded: str | None = ...) -> None: ...

class ChargeRequest(Message):
    policy: str
    key: str
    cost: int
    attributes: RepeatedCompositeFieldContainer[Attribute]
    max_wait_ms: int
    costs: RepeatedCompositeFieldContainer[LimitUnits]
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., cost: int | None = ..., attributes: Iterable[Attribute] = ..., max_wait_ms: int | None = ..., costs: Iterable[LimitUnits] = ...) -> None: ...

class ChargeResponse(Message):
    decision: Decision
    charge_id: str
    starts_at: int
    limits: RepeatedCompositeFieldContainer[LimitDecision]
    binding: str
    violated: RepeatedScalarFieldContainer[str]
    shadowed: RepeatedScalarFieldContainer[str]
    charged_at: int
    ttl_ms: int
    def __init__(self, *, decision: Decision | None = ..., charge_id: str | None = ..., starts_at: int | None = ..., limits: Iterable[LimitDecision] = ..., binding: str | None = ..., violated: Iterable[str] = ..., shadowed: Iterable[str] = ..., charged_at: int | None = ..., ttl_ms: int | None = ...) -> None: ...

class SettleRequest(Message):
    charge_id: str
    actual: int
    by_limit: RepeatedCompositeFieldContainer[LimitUnits]
    as_reserved: bool
    def __init__(self, *, charge_id: str | None = ..., actual: int | None = ..., by_limit: Iterable[LimitUnits] = ..., as_reserved: bool | None = ...) -> None: ...

class SettleResponse(Message):
    settled: bool
    uncharged: RepeatedCompositeFieldContainer[LimitUnits]
    def __init__(self, *, settled: bool | None = ..., uncharged: Iterable[LimitUnits] = ...) -> None: ...

class CancelRequest(Message):
    charge_id: str
    def __init__(self, *, charge_id: str | None = ...) -> None: ...

class CancelResponse(Message):
    cancelled: bool
    def __init__(self, *, cancelled: bool | None = ...) -> None: ...

class RenewRequest(Message):
    charge_id: str
    def __init__(self, *, charge_id: str | None = ...) -> None: ...

class RenewResponse(Message):
    held: bool
    def __init__(self, *, held: bool | None = ...) -> None: ...

class PauseRequest(Message):
    policy: str
    key: str
    attributes: RepeatedCompositeFieldContainer[Attribute]
    limits: RepeatedScalarFieldContainer[str]
    until_ms: int
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., attributes: Iterable[Attribute] = ..., limits: Iterable[str] = ..., until_ms: int | None = ...) -> None: ...

class PauseResponse(Message):
    def __init__(self) -> None: ...

class ResetRequest(Message):
    policy: str
    key: str
    attributes: RepeatedCompositeFieldContainer[Attribute]
    limits: RepeatedScalarFieldContainer[str]
    def __init__(self, *, policy: str | None = ..., key: str | None = ..., attributes: Iterable[Attribute] = ..., limits: Iterable[str] = ...) -> None: ...

class ResetResponse(Message):
    def __init__(self) -> None: ...
