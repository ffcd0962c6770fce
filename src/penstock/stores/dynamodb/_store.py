"""`DynamoDBStore`: conditional writes on a version attribute, after a consistent read.

Its clients, sync and async, are made on first use: this is the only file that imports a driver.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ..._queueing import Mutex
from ...core._errors import UnsupportedError, require_module
from ...core._flow import adrive, drive
from ...core._store import from_its_url
from ...core._validation import reject
from ..cas import AnyRequest, CasStore, ConnectionFailedError
from ..cas._drivers import PerLoop, Workers
from ..cas._requests import RetryPause, require_name
from ._items import Operation, answer, create, final, operation, translated

__all__ = ["Clients", "DynamoDBStore"]


_CONNECTIONS = 64

_require_module = partial(require_module, "DynamoDBStore")


class Clients:
    """A boto3 client for all threads, and an aiobotocore client for each loop.

    Their own retries are turned off, because only the store knows what may be repeated.
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


_TABLE = r"[A-Za-z0-9_.-]{3,255}"
_ADMIN_S = 60.0
# The most keys of one transaction.
_MOST_ITEMS = 100


class DynamoDBStore(CasStore):
    """Keeps states in a DynamoDB table: exact across every process that uses the table.

    Region and credentials are found as boto3 finds them; `region` and `endpoint` override that.
    `client` (boto3) and `async_client` (aiobotocore) may be passed instead; the store then serves
    sync or async callers, or both, by those it was given, and does not close them.

    Several limits are decided by a transaction. `transactions=False` is for what speaks the API and
    has none: there they are charged in order, and given back when a later one denies.

    A check is a strongly consistent read and a conditional put. Keys of 2,048 bytes and more are
    stored under their SHA-256, see `cas/_requests.py`.
    """

    # An item may have 400 KiB in all: the key, the version and the names are in it too.
    max_record_bytes = 400 * 1024 - 4096

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        client: Any = None,
        async_client: Any = None,
        timeout_ms: int = 1000,
        transactions: bool = True,
    ) -> None:
        super().__init__(timeout_ms)
        if not isinstance(transactions, bool):
            reject(f"transactions must be True or False, not {transactions!r}")
        self.most_keys_at_once = _MOST_ITEMS if transactions else 0
        self.table: str = require_name("table", table, _TABLE)
        self._serves_sync = client is not None or async_client is None
        self._serves_async = async_client is not None or client is None
        self._clients = Clients(self.timeout_ms, region, endpoint, client, async_client)
        self._workers = Workers()

    @classmethod
    @from_its_url
    def from_url(cls, url: str, **options: Any) -> DynamoDBStore:
        """`dynamodb://table?region=eu-west-1&endpoint=http://localhost:8000&timeout_ms=500`, and
        `transactions=off` for a server that has none."""
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = None
        if parts is None:
            reject("a dynamodb:// URL names a table, as in dynamodb://table?region=eu-west-1")
        if parts.username or parts.password:
            reject("credentials do not belong into a dynamodb:// URL; boto3 finds them")
        if parts.path.strip("/"):
            reject("a dynamodb:// URL names a table and nothing below it: dynamodb://table")
        for name, text in parse_qsl(parts.query, keep_blank_values=True):
            if name in ("region", "endpoint"):
                options.setdefault(name, text)
            elif name == "timeout_ms" and text.isdecimal():
                options.setdefault(name, int(text))
            elif name == "transactions" and text in ("on", "off"):
                options.setdefault(name, text == "on")
            else:
                reject(
                    "dynamodb:// takes ?region=, &endpoint=, &timeout_ms= and &transactions=on or "
                    f"off, not {name}={text}"
                )
        return cls(parts.netloc, **options)

    def create_table(self) -> None:
        """Create the table. Does nothing if it exists, and rejects a table of another program."""
        self._prepare()
        try:
            drive(create(self.table), self._administer)
        except Exception as error:
            raise final(error, self.table) from error

    async def acreate_table(self) -> None:
        """The awaitable twin of `create_table`."""
        await self._aprepare()
        try:
            await adrive(create(self.table), self._aadminister)
        except Exception as error:
            raise final(error, self.table) from error

    init = create_table
    ainit = acreate_table

    def serve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        operations = [operation(self.table, request) for request in requests]
        answers = self._workers.run([partial(self._call, *one) for one in operations], deadline)
        return list(map(self._answer, requests, answers))

    async def aserve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        operations = [operation(self.table, request) for request in requests]
        calls = [self._acall(*one, deadline) for one in operations]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return list(map(self._answer, requests, answers))

    def close(self) -> None:
        self._clients.close()
        self._workers.close()

    async def aclose(self) -> None:
        self.close()
        await self._clients.aclose()

    def __repr__(self) -> str:
        return f"<DynamoDBStore on table {self.table!r}, timeout_ms={self.timeout_ms}>"

    def _prepare(self) -> None:
        if not self._serves_sync:
            raise UnsupportedError(
                "this DynamoDBStore was made from an async client: use acheck, apeek, ..., or "
                "pass client= as well"
            )
        try:
            self._clients.blocking()
        except Exception as error:
            raise final(error, self.table) from error

    async def _aprepare(self) -> None:
        if not self._serves_async:
            raise UnsupportedError(
                "this DynamoDBStore was made from a sync client: use check, peek, ..., or pass "
                "async_client= as well"
            )
        try:
            await self._clients.asynchronous()
        except Exception as error:
            raise final(error, self.table) from error

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._clients.after_fork()
        self._workers = Workers()

    def _call(self, method: str, keywords: dict[str, Any]) -> Any:
        return getattr(self._clients.blocking(), method)(**keywords)

    async def _acall(self, method: str, keywords: dict[str, Any], deadline: float) -> Any:
        client = await self._clients.asynchronous()
        left_s = max(0.0, deadline - time.monotonic())
        try:
            return await asyncio.wait_for(getattr(client, method)(**keywords), left_s)
        except asyncio.TimeoutError:
            raise ConnectionFailedError("no reply in time", may_have_run=True) from None

    def _answer(self, request: AnyRequest, reply: Any) -> Any:
        if isinstance(reply, BaseException):
            return translated(reply, request, self.table)
        return answer(request, reply)

    def _administer(self, step: Operation | RetryPause) -> Any:
        if isinstance(step, RetryPause):
            return time.sleep(step.ms / 1000)
        return self._call(*step)

    async def _aadminister(self, step: Operation | RetryPause) -> Any:
        if isinstance(step, RetryPause):
            return await asyncio.sleep(step.ms / 1000)
        return await self._acall(*step, time.monotonic() + _ADMIN_S)
