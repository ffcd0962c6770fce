"""Records of open charges: they crowd out nothing, and each is settled once on every store."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from penstock import (
    ConfigInvalidError,
    ManualClock,
    MemoryStore,
    OverloadedError,
    QueueFullError,
    fixed_window,
)
from penstock.client import ServiceLimiter
from penstock.config import parse_policies
from penstock.core._transform import Transform, checking
from penstock.service import Service, _charge_records, build_service
from penstock.stores.redis import RedisStore
from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import ChargesStub
from tests.client.serving import RunningService
from tests.servers import Valkey, require
from tests.service.every_store import SHARED, url_of
from tests.service.http.serving import Client
from tests.service.worlds import FragileStore
from tests.stores.redis.live import new_key, open_empty, running
from tests.support.effort import count
from tests.support.helpers import NOW

R = TypeVar("R")

FEW = 100
LIMIT = 1_000_000
DAY_MS = 86_400_000
POLICIES = """
version: 1
defaults: {prefix: %s}
limiters:
  few: {strategy: fixedWindow, limit: 1, window: 30d, fail: error}
  api: {strategy: fixedWindow, limit: 1000000, window: 30d, anchor: first, fail: error}
  several:
    fail: error
    limits:
      user: {by: user, strategy: fixedWindow, limit: 1000000, window: 30d}
      tenant: {by: tenant, strategy: fixedWindow, limit: 1000000, window: 30d}
      all: {strategy: fixedWindow, limit: 1000000, window: 30d}
"""


def policies() -> Any:
    return parse_policies(POLICIES % new_key(), "penstock.yaml")


async def _spend(service: Service) -> None:
    for number in range(FEW):
        assert (await service.check("few", f"k{number}")).allowed


async def _require_spent(service: Service) -> None:
    told = [await service.peek("few", f"k{number}") for number in range(FEW)]
    assert not any(each.allowed for each in told)


@pytest.mark.parametrize("policy", ["api", "several"])
def test_reserving_and_cancelling_in_a_loop_evicts_no_count_in_memory(policy: str) -> None:
    clock = ManualClock(NOW)
    store = MemoryStore(FEW + 10, clock=clock)
    asked: dict[str, Any] = {"key": "hostile"}
    if policy == "several":
        asked = {"attributes": {"user": "hostile", "tenant": "t"}}

    async def main() -> None:
        service = build_service(policies(), store=store, clock=clock)
        await _spend(service)
        for _ in range(3_000):
            reserved = await service.reserve(policy, **asked)
            assert await service.cancel(reserved.charge_id)
        await _require_spent(service)
        assert store.stats()["evictions"] == 0
        assert service.snapshot().stores["charges"]["keys"] == 0

    asyncio.run(main())


def test_charges_that_are_never_settled_evict_no_count_in_memory() -> None:
    """With a new key each time, so that the bound of one key does not help: the table of the
    records is bounded, and lets the charges themselves go."""
    clock = ManualClock(NOW)
    store = MemoryStore(FEW + 10, clock=clock)

    async def main() -> None:
        service = build_service(policies(), store=store, clock=clock)
        await _spend(service)
        table = _charge_records.records_beside(store, clock)
        assert table is not store
        assert isinstance(table, MemoryStore)
        assert table.max_keys == _charge_records.MAX_RECORDS
        assert table.max_bytes == _charge_records.MAX_BYTES
        for _ in range(2_000):
            await service.reserve("several", attributes={"user": "hostile", "tenant": "t"})
        await _require_spent(service)
        assert store.stats()["evictions"] == 0

    asyncio.run(main())


def test_a_key_has_a_bounded_number_of_open_charges_and_no_more_are_admitted() -> None:
    clock = ManualClock(NOW)
    service = build_service(policies(), clock=clock, fail="open")

    async def main() -> None:
        held = [await service.reserve("api", "hostile") for _ in range(_charge_records.MAX_OPEN)]
        left = (await service.peek("api", "hostile")).remaining
        for _ in range(3):
            with pytest.raises(QueueFullError, match="10,000 open charges of policy 'api'"):
                await service.reserve("api", "hostile")
        assert (await service.peek("api", "hostile")).remaining == left
        assert (await service.reserve("api", "other")).charge_id
        assert await service.cancel(held[0].charge_id)
        assert (await service.reserve("api", "hostile")).charge_id
        # Charges that were forgotten by their holders do not block a key for long.
        clock.advance(10 * 60 * 1000)
        assert (await service.reserve("api", "hostile")).charge_id

    asyncio.run(main())


@pytest.mark.parametrize("name", ["memory", *SHARED])
def test_the_bound_holds_on_every_store_for_each_key_of_a_request(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = fixed_window(3, 600_000, "first")
    monkeypatch.setattr(_charge_records, "_OPEN", few)
    monkeypatch.setattr(_charge_records, "_COUNT", checking(few))

    async def main() -> None:
        service = build_service(policies(), url_of(name, tmp_path), clock=ManualClock(NOW))
        held = []
        for user in "abc":
            asked = {"user": user, "tenant": "t"}
            held.append((await service.reserve("several", attributes=asked)).charge_id)
        with pytest.raises(QueueFullError):
            await service.reserve("several", attributes={"user": "d", "tenant": "t"})
        assert (await service.peek_all("several", {"user": "d", "tenant": "t"})).verdict.limits[
            "user"
        ].remaining == LIMIT
        assert await service.settle(held[1], 1)
        assert not await service.settle(held[1], 1)
        assert (await service.reserve("several", attributes=asked | {"user": "d"})).charge_id
        await service.aclose()

    asyncio.run(main())


def test_too_many_open_charges_are_an_answer_of_their_own_over_http_and_grpc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = fixed_window(1, 600_000, "first")
    monkeypatch.setattr(_charge_records, "_COUNT", checking(few))
    with RunningService(policies=POLICIES % "p", token=None) as running:
        ports = {each: int(running.url(each).rpartition(":")[2]) for each in ("http", "grpc")}
        client = Client(ports["http"])
        asked = {"policy": "api", "key": "k"}
        assert client.post("/v1/reserve", asked).json["charge_id"]
        reply = client.post("/v1/reserve", asked)
        assert reply.status == 503
        assert reply.json["code"] == "overloaded"
        assert "open charges" in reply.json["detail"]
        client.close()
        with grpc.insecure_channel(f"127.0.0.1:{ports['grpc']}") as channel:
            with pytest.raises(grpc.RpcError) as refused:
                ChargesStub(channel).Reserve(pb.ChargeRequest(policy="api", key="k"))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for transport in ports:
            with ServiceLimiter(running.url(transport), "api", fail="open") as limiter:
                with pytest.raises(OverloadedError, match="open charges"):
                    limiter.reserve("k")
                assert limiter.check("k").degraded is None


def test_reserving_and_cancelling_in_a_loop_does_not_fill_a_server() -> None:
    """One that has room for half a megabyte more than the counts take."""
    require("valkey")

    async def main(server: Valkey) -> None:
        store = RedisStore.from_url(server.patient_url)
        service = build_service(policies(), store=store)
        await _spend(service)
        reserved = await service.reserve("api", "hostile")
        assert await service.cancel(reserved.charge_id)
        info = str(server.call("INFO", "memory"))
        used = int(info.partition("used_memory:")[2].split()[0])
        server.call("CONFIG", "SET", "maxmemory", used + (512 << 10))
        server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        keys = server.call("DBSIZE")

        async def loop() -> None:
            for _ in range(250):
                reserved = await service.reserve("api", "hostile")
                assert await service.cancel(reserved.charge_id)

        await asyncio.gather(*[loop() for _ in range(16)])
        assert server.call("DBSIZE") == keys
        assert (await service.check("few", "another")).allowed
        await _require_spent(service)
        await service.aclose()

    with Valkey() as server:
        asyncio.run(main(server))


class _Delayed(FragileStore):
    """Its clock moves on after the next read."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.delay_ms = 0

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result = await super().aapply(key, transform, now, cost)
        if transform.role == "peek":
            self._clock.advance(self.delay_ms)
        return result


def test_a_settlement_whose_record_expires_after_it_was_read_refunds_nothing() -> None:
    clock = ManualClock(NOW)
    store = _Delayed(clock)
    service = build_service(policies(), store=store, clock=clock)

    async def main() -> None:
        reserved = await service.reserve("api", "k", cost=10)
        store.delay_ms = 2 * DAY_MS
        assert not await service.cancel(reserved.charge_id)
        store.delay_ms = 0
        assert not await service.cancel(reserved.charge_id)
        assert (await service.peek("api", "k")).remaining == LIMIT - 10

    asyncio.run(main())


class _Node:
    """A service of its own, on an event loop in a thread of its own."""

    def __init__(self, file: Any, url: str, clock: ManualClock) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.service: Service = self.run(self._build(file, url, clock))

    async def _build(self, file: Any, url: str, clock: ManualClock) -> Service:
        return build_service(file, url, clock=clock)

    def begin(self, work: Coroutine[Any, Any, R]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        result: R = self.begin(work).result(60)
        return result

    def close(self) -> None:
        self.run(self.service.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.mark.parametrize("name", SHARED)
def test_settlements_of_two_nodes_refund_once_also_while_the_record_expires(
    name: str, tmp_path: Path
) -> None:
    """The clock reaches the end of the record's life while both nodes settle."""
    clock = ManualClock(NOW)
    chance = random.Random(name)
    file, url = policies(), url_of(name, tmp_path)
    nodes = [_Node(file, url, clock) for _ in range(2)]
    spent = 0
    for number in range(count(8, 25)):
        cost = number + 1
        made = nodes[0].run(nodes[0].service.reserve("api", "k", cost=cost)).charge_id
        clock.advance(DAY_MS - chance.choice((1, 1, 1, 1_000)))
        calls = [
            node.begin(node.service.cancel(made))
            for _ in range(3)
            for node in chance.sample(nodes, 2)
        ]
        clock.advance(chance.choice((0, 1, 1, 2)))
        done = sum(call.result(60) for call in calls)
        assert done <= 1
        clock.advance(1_000)
        assert not nodes[1].run(nodes[1].service.cancel(made))
        spent += 0 if done else cost
        left = nodes[1].run(nodes[1].service.peek("api", "k")).remaining
        assert left == LIMIT - spent
    for node in nodes:
        node.close()


def test_a_record_on_a_server_is_that_of_the_oracle() -> None:
    """Written, read and removed on Valkey as in Python, whatever the clock does."""
    require("valkey")
    store = open_empty("valkey")
    oracle = MemoryStore()
    chance = random.Random("records")
    for number in range(count(200, 2_000)):
        key, now = f"r{number % 7}", NOW + chance.randrange(0, 4_000)
        secret = f"{chance.getrandbits(128):032x}"
        steps = {
            "open": _charge_records.opening(key, [], chance.choice((1_000, 2_000)), secret),
            "close": _charge_records.closing(key, [], now),
        }
        asked = steps.get(chance.choice(("open", "close", "read")))
        if asked is None:
            told = [each.apply(key, _charge_records.reading, now, 1) for each in (store, oracle)]
        else:
            told = [each.apply_all(asked, now) for each in (store, oracle)]
        assert told[0] == told[1]
    store.close()


def test_a_key_that_holds_something_else_is_no_record() -> None:
    require("valkey")
    store = open_empty("valkey")
    running("valkey").call("SET", "r", "a line of text")
    with pytest.raises(ConfigInvalidError, match="key 'r'"):
        store.apply("r", _charge_records.reading, NOW, 1)
    with pytest.raises(ConfigInvalidError, match=r"key 'r'|charge_record"):
        store.apply_all(_charge_records.closing("r", [], NOW), NOW)
    store.close()
