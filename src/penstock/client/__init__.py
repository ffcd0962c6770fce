"""The client of a Penstock service, over HTTP or gRPC, with the calls of a limiter.

`ServiceLimiter` asks the service on every call; `LeasedLimiter` leases credits in batches and
spends them in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._admission import ServiceSlot
from ._charge import ServiceCharge
from ._limiter import ServiceLimiter
from ._open_limiter import open_limiter

if TYPE_CHECKING:
    from ..leasing import LeasedLimiter

__all__ = ["LeasedLimiter", "ServiceCharge", "ServiceLimiter", "ServiceSlot", "open_limiter"]


def __getattr__(name: str) -> Any:
    """`LeasedLimiter` needs gRPC, so it is imported on first use."""
    if name != "LeasedLimiter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..leasing import LeasedLimiter

    return LeasedLimiter
