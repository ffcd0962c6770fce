"""How a program asks a service, over HTTP or gRPC, with the calls of a limiter."""

from __future__ import annotations

from ._admission import ServiceSlot
from ._limiter import ServiceCharge, ServiceLimiter
from ._open_limiter import open_limiter

__all__ = ["ServiceCharge", "ServiceLimiter", "ServiceSlot", "open_limiter"]
