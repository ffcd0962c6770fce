"""urllib3: a PoolManager that waits for a limit before each request, and obeys responses.

    pool = LimitedPoolManager("10/second")

Every attempt counts, retries and redirects that urllib3 makes by itself included.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..core import _errors
from . import _outgoing
from ._outgoing import OutgoingOptions, OutgoingRequest

try:
    import urllib3
    import urllib3.connection
except ImportError as _error:
    raise _errors.ConfigInvalidError(
        _errors.missing("penstock.integrations.urllib3", "urllib3", "urllib3")
    ) from _error

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["LimitedPoolManager", "OutgoingOptions", "OutgoingRequest"]

_Manager = TypeVar("_Manager", bound=urllib3.PoolManager)


class LimitedPoolManager(urllib3.PoolManager):
    """A PoolManager with limits. `pool` is a mapping of the options of `PoolManager`, such as
    `{"num_pools": 4}`; the others are `OutgoingOptions`. `close()`, or the end of its `with`
    block, closes what was opened from a URL."""

    def __init__(
        self,
        limit: _outgoing.Rate | None,
        *,
        pool: dict[str, Any] | None = None,
        **options: Unpack[OutgoingOptions],
    ):
        self._outgoing = _outgoing.Outgoing(limit, **options)
        super().__init__(**(pool or {}))
        _limit_pools(self, self._outgoing)

    def close(self) -> None:
        """Close all connections, and the store that was opened from a URL."""
        self.clear()
        self._outgoing.close()

    def __exit__(self, *error: Any) -> Any:
        self.close()
        return False


def _limit_pools(manager: _Manager, outgoing: _outgoing.Outgoing) -> _Manager:
    """Make all further pools of a manager wait for the limits."""
    made: Any = {
        "http": partial(_LimitedHTTPPool, outgoing),
        "https": partial(_LimitedHTTPSPool, outgoing),
    }
    manager.pool_classes_by_scheme = made
    return manager


class _LimitedPool:
    """The part of a pool that waits for limits and obeys responses. An attempt is one call of
    `urlopen`, which waits before it takes a connection, and in it one of `_make_request`. The
    response of the latter need not be that of `urlopen`, which may retry."""

    def __init__(self, outgoing: _outgoing.Outgoing, *args: Any, **named: Any) -> None:
        self._outgoing = outgoing
        self._attempt = threading.local()
        super().__init__(*args, **named)

    def urlopen(self: Any, method: str, url: str, *args: Any, **named: Any) -> Any:
        headers = args[1] if len(args) > 1 else named.get("headers")
        self._attempt.entered = self._outgoing.enter(method, self._absolute(url), headers)
        return super().urlopen(method, url, *args, **named)  # type: ignore[misc]

    def _make_request(self: Any, *args: Any, **named: Any) -> Any:
        response = super()._make_request(*args, **named)  # type: ignore[misc]
        self._outgoing.observe(self._attempt.entered, response.status, response.headers)
        return response

    def _absolute(self: Any, url: str) -> str:
        """The whole URL: only requests through a proxy have it, others have a path."""
        if "://" in url:
            return url
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = urllib3.connection.port_by_scheme.get(self.scheme)
        port = "" if self.port in (None, usual) else f":{self.port}"
        return f"{self.scheme}://{host}{port}{url}"


class _LimitedHTTPPool(_LimitedPool, urllib3.HTTPConnectionPool):
    pass


class _LimitedHTTPSPool(_LimitedPool, urllib3.HTTPSConnectionPool):
    pass
