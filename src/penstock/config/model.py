"""What a policy file means, once it has been read and found valid.

A policy's meaning is everything that its counts depend on. Two policies of the same name and
meaning share their counts, wherever and whenever they were read; how a policy answers while its
store is away is not part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..core.strategy import Strategy
from ..strategies import fixed_window

__all__ = ["DEFAULT_FILE", "FAIL_MODES", "PolicyFile", "PolicySpec"]

FAIL_MODES = ("open", "closed", "error")


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One policy: a strategy, a budget, a ceiling on what is in flight, or all on one door."""

    name: str
    strategy: Strategy | None = None
    fail: str | None = None

    @property
    def kind(self) -> str:
        """ "limiter", "budget", "admission" or "unified"."""
        return "limiter"

    @property
    def meaning(self) -> str:
        """A short text that is the same exactly for policies that may share their counts."""
        told = repr(self.strategy)
        return hashlib.sha256(told.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """All policies of a service. `source` is where they were read, for messages."""

    policies: Mapping[str, PolicySpec]
    prefix: str = "penstock"
    source: str = field(default="built-in defaults", compare=False)


DEFAULT_FILE = PolicyFile(
    MappingProxyType({"default": PolicySpec("default", fixed_window(10, 60_000, "first"))})
)
"""What a service without a policy file serves: 10 requests per minute and key."""
