"""`open_limiter`: a limiter from a URL, so that where limits are counted can be configured."""

from __future__ import annotations

from typing import Any

from .._rate_limit import rate_limit
from ..core._limiter import Limiter
from ..core._strategy import Strategy
from ..core._validation import reject
from ._limiter import ServiceLimiter
from ._opening import SERVICE_SCHEMES

__all__ = ["open_limiter"]


def open_limiter(
    url: str,
    rate: str | Strategy | None = None,
    *,
    policy: str | None = None,
    **options: Any,
) -> Limiter | ServiceLimiter:
    """A `ServiceLimiter` for `policy` if the URL is that of a service, and else a `Limiter` of
    `rate` on the store behind it, which it closes.

    `options` go to the one that is made: `open_limiter("redis://localhost", "100/minute",
    prefix="api")`, `open_limiter("https://limits.internal", policy="api", token=...)`. Where both
    `rate` and `policy` are given, the URL alone decides which is used.
    """
    if not isinstance(url, str):
        reject(f"a limiter's URL must be a string, not a {type(url).__name__}")
    if url.partition("://")[0].lower() in SERVICE_SCHEMES:
        if policy is None:
            reject("a service is asked by a policy: open_limiter('http://...', policy='api')")
        return ServiceLimiter(url, policy, **options)
    if rate is None:
        reject("a store counts by a rate: open_limiter('redis://...', '100/minute')")
    return rate_limit(rate, store=url, **options)
