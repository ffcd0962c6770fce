"""Leases: a limit for a fleet without a round trip per request. Each node takes credits in batches
from the shared store, and spends them in process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._batch import AdaptiveBatch
from ._credits import LeaseSpender
from ._two_tier import TwoTierLimiter, two_tier

if TYPE_CHECKING:
    from ._client import LeasedLimiter

__all__ = ["AdaptiveBatch", "LeaseSpender", "LeasedLimiter", "TwoTierLimiter", "two_tier"]


def __getattr__(name: str) -> Any:
    """`LeasedLimiter` needs gRPC, so it is imported on first use."""
    if name != "LeasedLimiter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from ._client import LeasedLimiter
    except ImportError as error:
        from ..core._errors import ConfigInvalidError, missing

        raise ConfigInvalidError(
            missing("LeasedLimiter", error.name or "grpc", "client")
        ) from error
    return LeasedLimiter
