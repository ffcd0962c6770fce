"""aiohttp's client: a middleware that waits for a limit before each request, and obeys answers.

    async with ClientSession(middlewares=[LimitedMiddleware("10/second")]) as session: ...

Each redirect is a request of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import _errors
from . import _outgoing
from ._outgoing import OutgoingOptions, OutgoingRequest

try:
    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
except ImportError as _error:
    raise _errors.ConfigInvalidError(
        _errors.missing("penstock.integrations.aiohttp_client", "aiohttp", "aiohttp")
    ) from _error

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["LimitedMiddleware", "OutgoingOptions", "OutgoingRequest"]


class LimitedMiddleware:
    """For `aiohttp.ClientSession(middlewares=[...])`, or for one request. The options are those of
    `Outgoing`: `routes`, `key`, `timeout`, `store` and so on. A session does not close its
    middlewares: what was opened from a URL is closed by `aclose`, or by an `async with` block."""

    def __init__(self, limit: _outgoing.Rate | None, **options: Unpack[OutgoingOptions]) -> None:
        self._outgoing = _outgoing.Outgoing(limit, **options)

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Wait, send, and obey the limits in the response."""
        entered = await self._outgoing.aenter(request.method, str(request.url), request.headers)
        response = await handler(request)
        try:
            await self._outgoing.aobserve(entered, response.status, response.headers)
        except BaseException:
            # Cancelled meanwhile: the body will not be read.
            response.close()
            raise
        return response

    async def aclose(self) -> None:
        """Close the store that was opened from a URL."""
        await self._outgoing.aclose()

    async def __aenter__(self) -> LimitedMiddleware:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
