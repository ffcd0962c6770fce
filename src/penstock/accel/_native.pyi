"""The compiled path, as the type checker sees it."""

from collections.abc import Callable, Sequence
from typing import Any

class Decision:
    allowed: bool
    limit: int
    remaining: int
    reset_at: int
    retry_after_ms: int
    @property
    def degraded(self) -> str | None: ...
    def __init__(
        self, allowed: bool, limit: int, remaining: int, reset_at: int, retry_after_ms: int
    ) -> None: ...

class Table:
    evictions: int
    refusals: int
    keys: int
    weight: int
    def __init__(
        self,
        max_keys: int,
        max_bytes: int,
        evict: bool,
        longest: int,
        digest_of: Callable[[str], bytes],
        wrong_kind: Callable[[str, str, str], Exception],
        require_ttl: Callable[[Any, Any], int],
    ) -> None: ...
    def apply(self, key: str, transform: Any, now: int, cost: int) -> Any: ...
    def read(self, key: str, transform: Any, now: int) -> tuple[Any, int, int, int]: ...
    def is_shut(self, key: str) -> bool: ...
    def due_in(self) -> int: ...
    def commit(self, writes: list[Any]) -> int | bool | None: ...
    def discard(self, key: str) -> None: ...
    def sweep(self, now: int) -> int: ...
    def renew_lock(self) -> None: ...
    def __len__(self) -> int: ...

def reduced_head(
    raw: bytes, most_fields: int, lead: bytes
) -> tuple[bytes, int, bytes | None] | None: ...
def decision_reply(
    head: bytes, lines: bytes, decision: Decision, seconds: int, form: int
) -> bytes: ...

class DecisionReplies:
    allowed_head: bytes
    denied_head: bytes
    ok: int
    denied: int
    def count(self, status: int) -> None: ...

class CountedCheck:
    def __init__(
        self, gate: Any, failed: Callable[[Exception, tuple[str], int], Decision], tally: Any
    ) -> None: ...
    def check(self, key: str, cost: int = 1) -> Decision: ...

class Durations:
    counts: tuple[int, ...]
    sum_s: float
    def __init__(self, bounds_s: Sequence[float]) -> None: ...
    def observe(self, seconds: float) -> None: ...

class ReadyLimit:
    def __init__(
        self,
        decide: Callable[[str, int], Any],
        lines: bytes,
        until_reset: bool,
        seconds: Callable[[Decision, int], int],
        read_clock: Callable[[], int],
        anchor_ns: int | None,
    ) -> None: ...

class AwaitedReply:
    asked: Any
    def about(self, decision: Decision) -> bytes: ...

class LimitWords:
    def __init__(
        self,
        quoted: bytes,
        policy: bytes,
        lead: bytes,
        shadow: bool,
        kernel: tuple[Any, ...] | None,
        seconds: Callable[[Decision, int], int],
    ) -> None: ...

class VerdictReplies:
    @staticmethod
    def fits(words: list[LimitWords], shadows: bytes) -> bool: ...
    def __init__(self, words: list[LimitWords], shadows: bytes) -> None: ...
    def reply(
        self, head: bytes, decisions: tuple[Decision, ...], allowed: bool, now: int
    ) -> bytes: ...

class ReadyLimits:
    def __init__(
        self,
        gate: Any,
        ask: Callable[[list[str | None], int], Any],
        read_clock: Callable[[], int],
        words: VerdictReplies,
        places: list[int],
        tallies: list[Any],
    ) -> None: ...

class AwaitedVerdict:
    asked: Any
    def about(self, decisions: list[Decision]) -> bytes: ...

class ReadyPolicy:
    @staticmethod
    def fits(count: int) -> bool: ...
    def __init__(
        self,
        keys: tuple[str | None, ...],
        overrides: tuple[Any, ...],
        plan_by: str | None,
        of_plan: Callable[[Any], ReadyLimits | None],
        tally: Any,
        otherwise: Callable[[dict[str, Any], int], bytes | None],
    ) -> None: ...

class ReadyCheck:
    def __init__(
        self,
        replies: DecisionReplies,
        form: int,
        most_bytes: int,
        by_policy: Callable[[Any], ReadyLimit | None],
        by_terms: Callable[[int, int], ReadyLimit | None] | None,
        by_attributes: Callable[[str], ReadyPolicy | None] | None = None,
    ) -> None: ...

class WholeRequests:
    body_bytes: int
    def __init__(
        self, routes: dict[bytes, Any], most_head: int, most_fields: int, lead: bytes
    ) -> None: ...
    def answer(self, data: bytes) -> bytes | None: ...

class ScriptCommand:
    def __init__(
        self,
        sha1: bytes,
        before: tuple[bytes, ...],
        after: tuple[bytes, ...],
        takes_argument: bool = False,
    ) -> None: ...
    def pack(self, key: str, now: int, cost: int, argument: str | None = None) -> bytes: ...

class FirstExchange:
    where: Any
    steps: Any
    plan: Any
    now: int
    deadline: float
    told: Any
    is_answered: bool
    answer: FirstExchange
    def __init__(
        self,
        where: Any,
        steps: Any,
        plan: Any,
        now: int,
        deadline: float,
        told: Any,
        calls: bool,
        by: Any,
    ) -> None: ...
    def done(self) -> bool: ...
    def set_exception(self, error: Exception) -> None: ...
    def forget(self) -> None: ...

def pair_replies(waiting: Any, reader: Any, data: bytes) -> None: ...
