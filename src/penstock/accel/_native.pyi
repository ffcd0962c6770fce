"""The compiled path, as the type checker sees it."""

from collections.abc import Callable
from typing import Any

class Decision:
    allowed: bool
    limit: int
    remaining: int
    reset_at: int
    retry_after_ms: int
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
def flat_object(body: bytes) -> dict[str, Any] | None: ...
def decision_reply(
    head: bytes, label: bytes, decision: Decision, seconds: int, nested: bool
) -> bytes: ...
