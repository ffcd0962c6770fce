"""Requests: an adapter that waits for a limit before each request, and obeys responses.

    session = requests.Session()
    limit_session(session, "10/second")

Every attempt counts, redirects and the retries of `max_retries` included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core import _errors
from . import _outgoing
from ._outgoing import OutgoingOptions, OutgoingRequest

try:
    import requests
    import requests.adapters
except ImportError as _error:
    raise _errors.ConfigInvalidError(
        _errors.missing("penstock.integrations.requests", "requests", "requests")
    ) from _error

from . import urllib3 as _urllib3

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["LimitedAdapter", "OutgoingOptions", "OutgoingRequest", "limit_session"]


class LimitedAdapter(requests.adapters.HTTPAdapter):
    """An adapter with limits, for `session.mount`. `adapter` is a mapping of the options of
    `HTTPAdapter`, such as `{"max_retries": 2}`; the others are `OutgoingOptions`. It may be
    mounted in several places; the session closes it."""

    def __init__(
        self,
        limit: _outgoing.Rate | None,
        *,
        adapter: dict[str, Any] | None = None,
        **options: Unpack[OutgoingOptions],
    ) -> None:
        self._outgoing = _outgoing.Outgoing(limit, **options)
        super().__init__(**(adapter or {}))

    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        """Make pools that wait for the limits."""
        super().init_poolmanager(*args, **named)
        _urllib3._limit_pools(self.poolmanager, self._outgoing)

    def proxy_manager_for(self, proxy: str, **named: Any) -> Any:
        """Make pools that wait for the limits, for a proxy."""
        return _urllib3._limit_pools(super().proxy_manager_for(proxy, **named), self._outgoing)

    def close(self) -> None:
        """Close all connections, and the store that was opened from a URL."""
        super().close()
        self._outgoing.close()

    def __reduce__(self) -> Any:
        raise TypeError("a LimitedAdapter cannot be pickled or copied: make one in each process")


def limit_session(
    session: requests.Session,
    limit: _outgoing.Rate | None,
    *,
    adapter: dict[str, Any] | None = None,
    **options: Unpack[OutgoingOptions],
) -> LimitedAdapter:
    """Mount one adapter for everything that a session sends. The options are those of
    `LimitedAdapter`."""
    mounted = LimitedAdapter(limit, adapter=adapter, **options)
    for scheme in ("http://", "https://"):
        session.mount(scheme, mounted)
    return mounted
