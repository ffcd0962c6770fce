"""`open_limiter`: a limiter from a URL, so that a setting can say where limits are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._rate_limit import rate_limit
from ..core._limiter import Limiter
from ..core._strategy import Strategy
from ..core._validation import reject
from ._limiter import ServiceLimiter
from ._transport import SERVICE_SCHEMES, grpc_target

if TYPE_CHECKING:
    from ..leasing import LeasedLimiter

__all__ = ["open_limiter"]


def open_limiter(
    url: str,
    rate: str | Strategy | None = None,
    *,
    policy: str | None = None,
    batch: int | None = None,
    **options: Any,
) -> Limiter | ServiceLimiter | LeasedLimiter:
    """A `ServiceLimiter` for `policy` if the URL is that of a service, otherwise a `Limiter` for
    `rate` on the store at that URL. Closing the limiter closes the store.

    With a `batch` and a `grpc://` URL, it is a `LeasedLimiter`, which leases that many credits of a
    `federated` policy at once and spends them in this process.

    `options` are those of the limiter: `open_limiter("redis://localhost", "100/minute",
    prefix="api")`, `open_limiter("https://limits.internal", policy="api", token=...)`,
    `open_limiter("grpc://limits.internal:50051", policy="api", batch=100, secret=...)`. If both
    `rate` and `policy` are given, the URL decides which is used. The same holds for the `prefix` of
    a store and the options of a service: `token`, `secret`, `tls`, `timeout_ms`, `heartbeat_ms`.
    """
    if not isinstance(url, str):
        reject(f"a limiter's URL must be a string, not a {type(url).__name__}")
    options = _used(url, options)
    if _is_service(url):
        if policy is None:
            reject("the URL of a service needs a policy: open_limiter('http://...', policy='api')")
        if batch is None:
            return ServiceLimiter(url, policy, **options)
        return _leased(url, policy, batch, **options)
    if rate is None:
        reject("the URL of a store needs a rate: open_limiter('redis://...', '100/minute')")
    if batch is not None:
        reject(
            "batch needs a grpc:// URL of a service; to lease batches from a store, use "
            "penstock.leasing.two_tier"
        )
    return rate_limit(rate, store=url, **options)


# Options that say how to get at the one or the other, and nothing about what is decided.
_OF_STORES = ("prefix",)
_OF_SERVICES = ("token", "secret", "tls", "timeout_ms", "heartbeat_ms")


def _is_service(url: str) -> bool:
    return url.partition("://")[0].lower() in SERVICE_SCHEMES


def _used(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options without those of the kind that the URL has not chosen."""
    is_service = _is_service(url)
    unused = _OF_STORES if is_service else _OF_SERVICES
    left = {name: value for name, value in options.items() if name not in unused}
    if not is_service and left.pop("fail", "error") != "error":
        reject("a store that is away raises, so fail is for the URL of a service; leave it out")
    return left


def _leased(url: str, policy: str, batch: int, *, tls: Any = None, **options: Any) -> LeasedLimiter:
    target, credentials = grpc_target(url, tls)
    from ..leasing import LeasedLimiter

    return LeasedLimiter(target, policy, batch=batch, credentials=credentials, **options)
