"""`RedisStore`: chooses the flow of an operation, and the connections that serve it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..._queueing.fork import ForkAware, watch_forks
from ...core import native
from ...core._errors import UnsupportedError
from ...core._steps import Step
from ...core._store import Store, Told, from_its_url
from ...core._strategy import Strategy
from ...core._transform import Transform
from ...core._validation import MAX_PARTS, reject, require_int
from ._factory import (
    Deployment,
    deployment_of_client,
    deployment_of_url,
    require_module,
    split_options,
)
from ._flows import RedisFlows
from ._requests import RedisFlow
from ._routing import RedisRouter

if TYPE_CHECKING:
    from ._first_exchanges import FirstExchanges

__all__ = ["RedisStore"]


R = TypeVar("R")


class RedisStore(Store, ForkAware):
    """Keeps states in Redis, Valkey or Upstash: one limit for everyone who uses the same server.

    `client` is a redis-py or valkey-py client, sync or asyncio, standalone, of a Sentinel or of a
    Cluster, or an upstash-redis client; the store then serves sync or async callers, as the client
    does. With `from_url` it serves both. Of a redis-py or valkey-py client the store takes the
    address, the credentials and the TLS settings, and opens connections of its own.

    `use_server_time` makes the server's clock decide, so that the clocks of a fleet do not matter.
    `timeout_ms` is how long a call may take, connecting included; past it the call raises
    `store_unavailable`.
    """

    def __init__(self, client: Any, *, use_server_time: bool = True, timeout_ms: int = 100) -> None:
        if isinstance(client, str):
            reject("client must be a client; for a URL write RedisStore.from_url(url)")
        self._prepare(use_server_time, timeout_ms)
        if type(client).__module__.partition(".")[0] == "upstash_redis":
            self._connect_rest(client)
        else:
            self._connect(deployment_of_client(client))

    @classmethod
    @from_its_url
    def from_url(
        cls, url: str, *, use_server_time: bool = True, timeout_ms: int = 100
    ) -> RedisStore:
        """A store for sync and async callers, from a URL such as `redis://host:6379/0`,
        `rediss://`, `unix://`, `redis+sentinel://` or `redis+cluster://`. Parameters in the URL
        take precedence over these options."""
        url, said = split_options(url)
        store = cls.__new__(cls)
        store._prepare(**{"use_server_time": use_server_time, "timeout_ms": timeout_ms, **said})
        store._connect(deployment_of_url(url))
        return store

    def _prepare(self, use_server_time: bool, timeout_ms: int) -> None:
        if not isinstance(use_server_time, bool):
            reject(f"use_server_time must be True or False, not {use_server_time!r}")
        self.timeout_ms: int = require_int("timeout_ms", timeout_ms, high=3_600_000)
        self.reads_own_clock = use_server_time
        self._sync: Any = _NO_SYNC
        self._async: Any = _NO_ASYNC

    def _connect(self, deployment: Deployment) -> None:
        require_module("hiredis")
        if deployment.sync_factory is not None:
            from ._sync_connections import SyncConnections

            self._sync = SyncConnections(deployment.sync_factory, self.timeout_ms)
        if deployment.async_factory is not None:
            from ._async_connections import AsyncConnections

            self._async = AsyncConnections(deployment.async_factory, self.timeout_ms)
            self.begin: Callable[[Sequence[Step], int, Told], None] | None = self._begin_steps
        self._begin(RedisRouter(deployment.topology))

    def _connect_rest(self, client: Any) -> None:
        from ._upstash import upstash_connections, upstash_topology

        connections, is_async = upstash_connections(client, self.timeout_ms)
        if is_async:
            self._async = connections
        else:
            self._sync = connections
        self._begin(RedisRouter(upstash_topology()))

    def _begin(self, router: RedisRouter) -> None:
        self._router = router
        self._flows = RedisFlows(router, use_server_time=self.reads_own_clock)
        self._first: FirstExchanges | None = None
        if native is not None and self.begin is not None:
            from ._first_exchanges import FirstExchanges

            self._first = FirstExchanges(self._async, self._flows, router.topology)
        watch_forks(self)

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = self._sync.run(self._flows.apply(key, transform, now, cost))
        return result

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        begun: Any = self._first and self._first.begin_one(key, transform, now, cost)
        if begun is None:
            result: R = await self._async.run(self._flows.apply(key, transform, now, cost))
            return result
        heard: Any = await begun.told
        if not begun.is_answered:
            heard = await self._rest(begun, heard)
        result = heard if begun.plan is None else heard[0]
        return result  # noqa: RET504

    def apply_timed(self, key: str, transform: Transform[R], now: int, cost: int) -> tuple[R, int]:
        result, at = self._sync.run(self._flows.apply_timed(key, transform, now, cost))
        return result, at

    async def aapply_timed(
        self, key: str, transform: Transform[R], now: int, cost: int
    ) -> tuple[R, int]:
        begun: Any = self._first and self._first.begin_operation(key, transform, now, cost)
        if begun is None:
            flow = self._flows.apply_timed(key, transform, now, cost)
            result, at = await self._async.run(flow)
            return result, at
        heard = await begun.told
        result, at = heard if begun.is_answered else await self._rest(begun, heard)
        return result, at

    def _rest(self, begun: Any, heard: Any) -> Awaitable[Any]:
        """The result of a call whose first exchange got something other than an answer."""
        rest: Awaitable[Any] = self._async.run(self._flows.rest_of(begun, heard), begun.deadline)
        return rest

    def apply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        results: list[R] = self._sync.run(self._flows.apply_many(keys, transform, now, cost))
        return results

    async def aapply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        flow = self._flows.apply_many(keys, transform, now, cost)
        results: list[R] = await self._async.run(flow)
        return results

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        if _is_one_check(steps):
            key, transform, cost, _ = steps[0]
            return [self.apply(key, transform, now, cost)]
        results: list[Any] = self._sync.run(self._flows.apply_all(steps, now))
        return results

    async def aapply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        if _is_one_check(steps):
            key, transform, cost, _ = steps[0]
            return [await self.aapply(key, transform, now, cost)]
        begun: Any = self._first and self._first.begin_steps(steps, now)
        if begun is None:
            results: list[Any] = await self._async.run(self._flows.apply_all(steps, now))
            return results
        results = await begun.told
        return results if begun.is_answered else await self._rest(begun, results)

    def _begin_steps(self, steps: Sequence[Step], now: int, told: Told) -> None:
        first = self._first
        if len(steps) == 1:
            key, transform, cost, _ = steps[0]
            if first is None or first.begin_check(key, transform, now, cost, told) is None:
                self._async.begin(self._flows.apply(key, transform, now, cost), told)
        elif first is None or first.begin_steps(steps, now, told) is None:
            self._async.begin(self._flows.apply_all(steps, now), told)

    def server_now(self, key: str) -> int:
        now: int = self._sync.run(self._flows.server_now(key))
        return now

    def require_strategy(self, strategy: Strategy) -> None:
        if strategy.most_parts > MAX_PARTS:
            reject(
                f"{strategy!r} has up to {strategy.most_parts} parts, which each check on Redis "
                f"would read; use at most {MAX_PARTS} buckets"
            )

    def is_atomic(self, lead: str) -> bool:
        """Always, except in a cluster, where all keys have to be in one slot: the prefix needs a
        hash tag."""
        return self._router.topology.is_one_slot(lead)

    def close(self) -> None:
        """Close the connections that the store has made. A later call opens new ones.

        `aclose` closes those of the running event loop, and the blocking ones.
        """
        self._sync.close()
        self._async.close()

    async def aclose(self) -> None:
        self._sync.close()
        await self._async.aclose()

    def __repr__(self) -> str:
        return f"<RedisStore on {self._router.topology}, timeout_ms={self.timeout_ms}>"

    def _after_fork_in_child(self) -> None:
        """A forked child must not use its parent's sockets."""
        self._sync.after_fork()
        self._async.after_fork()


def _is_one_check(steps: Sequence[Step]) -> bool:
    """Web apps mostly have one limit, and to plan several is a sixth of a check."""
    return len(steps) == 1 and steps[0][1].role == "check" and steps[0][2] > 0


class _NoConnections:
    """Stands where a store has no client for this way to call."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def run(self, _flow: RedisFlow) -> Any:
        raise UnsupportedError(self._reason)

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def after_fork(self) -> None:
        pass


_NO_SYNC = _NoConnections(
    "this RedisStore was made from an asyncio client: use acheck, apeek, ..., or make it with "
    "RedisStore.from_url, which serves both"
)
_NO_ASYNC = _NoConnections(
    "this RedisStore was made from a sync client: use check, peek, ..., or make it with "
    "RedisStore.from_url, which serves both"
)
