"""RestStore: a CasStore whose requests become HTTP calls."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from ..cas import CasStore, Request
from .batching import RequestBatcher
from .client import HttpCall, Reply, RestClient

__all__ = ["RestStore"]


class RestStore(CasStore):
    """A backend behind HTTP says how its requests are written and its replies are read."""

    most_calls: ClassVar[int] = 4
    """HTTP calls that a loop has under way at once."""

    most_requests: ClassVar[int] = 32
    """Requests that go in one HTTP call."""

    def __init__(self, base_url: str, token: str, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self._client = RestClient(base_url, token, self.timeout_ms)
        self._batchers: WeakKeyDictionary[Any, RequestBatcher] = WeakKeyDictionary()

    @abstractmethod
    def _calls(self, requests: Sequence[Request]) -> list[HttpCall]:
        """The HTTP calls for the requests: one for each, or one for all."""

    @abstractmethod
    def _answers(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[Any]:
        """What the replies to those calls say about each request, exceptions included."""

    def serve(self, requests: Sequence[Request], deadline: float) -> list[Any]:
        return self._heard(requests, self._client.send(self._calls(requests), deadline))

    async def aserve(self, requests: Sequence[Request], deadline: float) -> list[Any]:
        loop = asyncio.get_running_loop()
        batcher = self._batchers.get(loop)
        if batcher is None:
            batcher = RequestBatcher(self._asend, self.most_calls, self.most_requests)
            self._batchers[loop] = batcher
        return await batcher.ask(requests, deadline)

    async def _asend(self, requests: Sequence[Request], deadline: float) -> list[Any]:
        return self._heard(requests, await self._client.asend(self._calls(requests), deadline))

    def close(self) -> None:
        self._client.close()

    async def aclose(self) -> None:
        await self._client.aclose()

    def _prepare(self) -> None:
        self._client.prepare()

    async def _aprepare(self) -> None:
        await self._client.aprepare()

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._client.after_fork()

    def _heard(self, requests: Sequence[Request], replies: list[Any]) -> list[Any]:
        """Calls that failed fail their request, or all requests if one call was for all."""
        if len(replies) == len(requests):
            return [
                reply if isinstance(reply, BaseException) else self._answers([one], [reply])[0]
                for one, reply in zip(requests, replies, strict=True)
            ]
        [reply] = replies
        if isinstance(reply, BaseException):
            return [reply] * len(requests)
        return self._answers(requests, replies)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} at {self._client.base_url}, timeout_ms={self.timeout_ms}>"
