"""What is to be done for a request, as far as its head tells.

Clients repeat themselves: the head of a connection's second request is nearly always the head of
its first, to the byte. So heads are remembered, with all that follows from them, and a request
that was seen before costs one lookup instead of a parse. The memory is small and is emptied when
it is full; a client that sends a new head each time pays for its own parsing only.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Answer", "Plan", "Plans"]

Answer: TypeAlias = "bytes | Coroutine[Any, Any, bytes]"
"""A whole reply, or what will make one when the store has spoken."""

_MAX_PLANS = 1_024
_MAX_HEAD_BYTES = 2_048


@dataclass(slots=True)
class Plan:
    """`answer` takes the body. `last` means that the connection ends with this reply, and
    `bare` that the reply goes without its body, as for HEAD."""

    answer: Callable[[bytes], Answer]
    length: int
    max_bytes: int
    last: bool = False
    bare: bool = False
    expects: bool = False
    shaped: bool = field(init=False)

    def __post_init__(self) -> None:
        self.shaped = self.last or self.bare


class Plans(dict[bytes, Plan]):
    """Plans by head. Look up with `plans[head]`."""

    def __init__(self, make: Callable[[bytes], Plan]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, head: bytes) -> Plan:
        plan = self._make(head)
        if len(head) <= _MAX_HEAD_BYTES:
            if len(self) >= _MAX_PLANS:
                self.clear()
            self[head] = plan
        return plan
