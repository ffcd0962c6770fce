"""Sync and async clients, made when first used. The only file that imports a driver."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..._queueing import Mutex
from ...core._errors import require_module
from ..cas._requests import PerLoop

__all__ = ["Clients"]

_CONNECTIONS = 64

_require_module = partial(require_module, "DynamoDBStore")


class Clients:
    """A boto3 client for all threads, and an aiobotocore client for each loop.

    They are made without retries of their own: the store knows better what may be repeated.
    """

    def __init__(
        self, timeout_ms: int, region: str | None, endpoint: str | None, client: Any, aclient: Any
    ) -> None:
        self._timeout_s = timeout_ms / 1000
        self._place = {"region_name": region, "endpoint_url": endpoint}
        self._given = client
        self._agiven = aclient
        self._forget()

    def _forget(self) -> None:
        self._mutex = Mutex()
        self._blocking: Any = self._given
        self._asynchronous = PerLoop(self._open, self._shut)

    after_fork = _forget

    def blocking(self) -> Any:
        if self._blocking is None:
            with self._mutex.hold():
                if self._blocking is None:
                    session = _require_module("boto3.session").Session()
                    config = _require_module("botocore.config").Config(**self._settings())
                    self._blocking = session.client("dynamodb", config=config, **self._place)
        return self._blocking

    async def asynchronous(self) -> Any:
        return self._agiven if self._agiven is not None else await self._asynchronous.get()

    def close(self) -> None:
        if self._given is None:
            with self._mutex.hold():
                client, self._blocking = self._blocking, None
            if client is not None:
                client.close()

    async def aclose(self) -> None:
        await self._asynchronous.aclose()

    async def _open(self) -> Any:
        session = _require_module("aiobotocore.session").get_session()
        config = _require_module("aiobotocore.config").AioConfig(**self._settings())
        made = session.create_client("dynamodb", config=config, **self._place)
        return await made.__aenter__()

    async def _shut(self, client: Any) -> None:
        await client.__aexit__(None, None, None)

    def _settings(self) -> dict[str, Any]:
        return {
            "connect_timeout": self._timeout_s,
            "read_timeout": self._timeout_s,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"total_max_attempts": 1},
        }
