"""httpx: transports that wait for a limit before each request, and obey limits in responses.

    client = httpx.Client(transport=LimitedTransport("10/second"))

A transport sees what goes over the network: each redirect is a request of its own.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from ..core import _errors
from . import _outgoing
from ._outgoing import OutgoingOptions, OutgoingRequest

try:
    import httpx
except ImportError as _error:
    raise _errors.ConfigInvalidError(
        _errors.missing("penstock.integrations.httpx", "httpx", "httpx")
    ) from _error

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AsyncLimitedTransport", "LimitedTransport", "OutgoingOptions", "OutgoingRequest"]


class LimitedTransport(httpx.BaseTransport):
    """For `httpx.Client(transport=...)`. `transport` is the one that sends, an HTTPTransport by
    default; the other options are `OutgoingOptions`. The client closes it."""

    def __init__(
        self,
        limit: _outgoing.Rate | None,
        *,
        transport: httpx.BaseTransport | None = None,
        **options: Unpack[OutgoingOptions],
    ) -> None:
        self._outgoing = _outgoing.Outgoing(limit, **options)
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Wait, send, and obey the limits in the response."""
        entered = self._outgoing.enter(request.method, str(request.url), request.headers)
        response = self._transport.handle_request(request)
        self._outgoing.observe(entered, response.status_code, response.headers)
        return response

    def __enter__(self) -> LimitedTransport:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(exc_type, exc_value, traceback)
        self._outgoing.close()

    def close(self) -> None:
        """Close the transport that sends, and the store that was opened from a URL."""
        self._transport.close()
        self._outgoing.close()


class AsyncLimitedTransport(httpx.AsyncBaseTransport):
    """The async twin of `LimitedTransport`, for `httpx.AsyncClient(transport=...)`."""

    def __init__(
        self,
        limit: _outgoing.Rate | None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Unpack[OutgoingOptions],
    ) -> None:
        self._outgoing = _outgoing.Outgoing(limit, **options)
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait, send, and obey the limits in the response."""
        entered = await self._outgoing.aenter(request.method, str(request.url), request.headers)
        response = await self._transport.handle_async_request(request)
        try:
            await self._outgoing.aobserve(entered, response.status_code, response.headers)
        except BaseException:
            # Cancelled meanwhile: the body will not be read.
            await response.aclose()
            raise
        return response

    async def __aenter__(self) -> AsyncLimitedTransport:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, exc_value, traceback)
        await self._outgoing.aclose()

    async def aclose(self) -> None:
        """Close the transport that sends, and the store that was opened from a URL."""
        await self._transport.aclose()
        await self._outgoing.aclose()
