"""Admission by several services that share a store: one pool, whoever is asked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from penstock.config import parse_policies
from penstock.service import Service, build_service
from penstock.stores import open_store
from tests.servers import NotReady, eventually
from tests.service.http.serving import Client, Penstock
from tests.stores.postgres import live as postgres
from tests.stores.redis.live import PATIENT_MS, new_key, url_of

FILE = """
version: 1
defaults: {prefix: "%s"}
limiters:
  jobs: {concurrency: {minLimit: 3, maxLimit: 3, leaseTtl: 20s}}
  each: {concurrency: {minLimit: 2, maxLimit: 2, leaseTtl: 20s, perKey: true}}
  short: {concurrency: {minLimit: 1, maxLimit: 2, law: aimd, backoff: 0.5, leaseTtl: 200ms}}
  learns: {concurrency: {minLimit: 1, maxLimit: 9, initialLimit: 8, law: aimd, backoff: 0.5}}
  all:
    strategy: fixedWindow
    limit: 5
    window: 1d
    concurrency: {minLimit: 3, maxLimit: 3, leaseTtl: 20s}
    tokenBudget: {budget: 100, window: 1d}
"""


@pytest.fixture(params=["valkey", "cluster", "postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/slots.db?timeout_ms={PATIENT_MS}"
    if request.param == "postgres":
        return postgres.url_of(postgres.new_table())
    return f"{url_of(request.param)}?timeout_ms={PATIENT_MS}"


@asynccontextmanager
async def services(url: str, count: int, text: str = FILE) -> AsyncIterator[list[Service]]:
    file = parse_policies(text % new_key())
    made = [build_service(file, store=open_store(url)) for _ in range(count)]
    try:
        for service in made:
            await service.start()
        yield made
    finally:
        for service in made:
            await service.aclose()


def test_services_share_a_pool_and_find_each_others_leases(url: str) -> None:
    """Three slots between them; one that was given back anywhere is free everywhere."""

    async def main() -> None:
        async with services(url, 3) as fleet:
            asked = [fleet[n % 3].admit("jobs", "k") for n in range(12)]
            held = [each.lease_id for each in await asyncio.gather(*asked) if each]
            assert len(held) == 3
            one, two, three = held
            beat = await fleet[1].heartbeat([*held, "never", one])
            assert (beat.live_ids, beat.reclaimed_ids) == (held, ["never"])
            for service in fleet:
                await service.release(one)
            assert (await fleet[2].heartbeat(held)).reclaimed_ids == [one]
            assert (await fleet[0].admit("jobs", "x")).decision.remaining == 0
            denied = await fleet[1].admit("jobs", "x")
            assert (denied.binding_axis, denied.lease_id) == ("concurrency", "")
            assert 1 <= denied.decision.retry_after_ms <= 1_000
            for lease_id in (two, three):
                await fleet[2].release(lease_id, dropped=True)
            assert (await fleet[0].admit("jobs", "x")).decision.remaining == 1

    asyncio.run(main())


def test_slots_of_each_key_are_found_by_any_service(url: str) -> None:
    """Whatever the key is, long ones too."""

    async def main() -> None:
        async with services(url, 2) as (one, other):
            keys = ["a", "b:c", "\u00fc" * 2_048, "x" * 127, "x" * 128]
            held = [(await one.admit("each", key)).lease_id for key in keys for _ in range(2)]
            assert all(held)
            assert not any([await other.admit("each", key) for key in keys])
            assert (await other.heartbeat(held)).live_ids == held
            for lease_id in held[::2]:
                await other.release(lease_id)
            assert all([await one.admit("each", key) for key in keys])

    asyncio.run(main())


def test_a_denial_by_any_axis_leaves_the_others_as_they_were(url: str) -> None:
    """Through two services at once: exactly as many are admitted as the tightest axis allows, and
    exactly as much is charged."""

    async def main() -> None:
        async with services(url, 2) as (one, other):
            asked = [(one, other)[n % 2].admit("all", "k") for n in range(20)]
            answers = await asyncio.gather(*asked)
            held = [each.lease_id for each in answers if each]
            assert len(held) == 3
            assert {each.binding_axis for each in answers} == {"", "concurrency"}
            for lease_id in held:
                await other.release(lease_id)
            # Three were charged, and an estimate that does not fit is refused as a whole.
            assert (await one.admit("all", "k", 3)).binding_axis == "rate"
            last = await other.admit("all", "k", 2)
            assert last
            assert (await one.admit("all", "k")).binding_axis == "rate"
            await other.debit("all", "k", 100)
            assert (await one.admit("all", "k")).binding_axis == "cost"
            await one.release(last.lease_id)
            assert (await one.admit("all", "fresh")).decision.remaining == 2

    asyncio.run(main())


def test_the_slot_of_a_silent_holder_comes_back_and_is_counted_once(url: str) -> None:
    """By one of the services, whose ceiling it contracts."""

    async def main() -> None:
        async with services(url, 2) as pair:
            admitted = await pair[0].admit("short", "k")
            assert admitted

            def counted() -> int:
                return sum(service.snapshot().slots["short"]["reclaimed"] for service in pair)

            for _ in range(400):
                if counted():
                    break
                await asyncio.sleep(0.05)
            # By one of them: the other has had the time to look, too.
            await asyncio.sleep(0.6)
            assert counted() == 1
            assert (await pair[1].heartbeat([admitted.lease_id])).reclaimed_ids
            assert (await pair[1].admit("short", "k")).decision

    asyncio.run(main())


def test_leases_outlive_the_node_that_granted_them(tmp_path: Path) -> None:
    """Their holders turn to another node, which knows them."""
    config = tmp_path / "penstock.yaml"
    config.write_text(FILE % new_key())
    flags = ("--config", str(config), "--store", f"{url_of('valkey')}?timeout_ms={PATIENT_MS}")
    with Penstock(*flags) as one, Penstock(*flags) as other:
        first, second = Client(one.port), Client(other.port)
        asked = {"policy": "jobs", "key": "k"}
        held = [first.post("/v1/admit", asked).json["lease_id"] for _ in range(3)]
        one.kill()
        assert second.post("/v1/admit", asked).json["binding_axis"] == "concurrency"
        beat = second.post("/v1/heartbeat", {"lease_ids": held}).json
        assert (beat["live_ids"], beat["reclaimed_ids"]) == (held, [])
        assert second.post("/v1/release", {"lease_id": held[0]}).json == {}
        assert second.post("/v1/admit", asked).json["lease_id"]
        assert not second.post("/v1/admit", asked).json["lease_id"]
        for client in (first, second):
            client.close()


def test_a_ceiling_bounds_the_pool_of_all(url: str) -> None:
    """One that has come down by what a service saw lets that one take no more, whoever holds the
    slots."""

    async def main() -> None:
        async with services(url, 2) as (one, other):
            held = [(await other.admit("learns", "k")).lease_id for _ in range(4)]
            lost = (await one.admit("learns", "k")).lease_id
            await one.release(lost, dropped=True)
            denied = await one.admit("learns", "k")
            assert (denied.binding_axis, denied.decision.limit) == ("concurrency", 4)
            assert (await other.admit("learns", "k")).decision.limit == 8
            assert all(held)

    asyncio.run(main())


HOLDER = """
import sys, time
from penstock.client import ServiceLimiter
with ServiceLimiter(sys.argv[1], "jobs", timeout_ms=10_000) as limiter:
    with limiter.admit("k") as slot:
        print(slot.id, flush=True)
        time.sleep(60)
"""
POOL = """
version: 1
defaults: {prefix: "%s"}
limiters:
  jobs: {concurrency: {minLimit: 4, maxLimit: 4, leaseTtl: 2s}}
"""


def test_the_leases_of_killed_clients_come_back_once_to_nodes_with_several_workers(
    tmp_path: Path,
) -> None:
    """Over HTTP and gRPC, of whichever worker of whichever node. Meanwhile others take what is
    left, and never more."""
    config = tmp_path / "penstock.yaml"
    config.write_text(POOL % new_key())
    store = f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"
    options = ("--config", str(config), "--workers", "2", "--store", store)
    with ExitStack() as stack:
        nodes = [stack.enter_context(Penstock(*options, grpc=True)) for _ in range(2)]
        holders = []
        ports = (nodes[0].port, nodes[1].grpc_port, nodes[0].grpc_port)
        for transport, port in zip(("http", "grpc", "grpc"), ports, strict=True):
            command = [sys.executable, "-c", HOLDER, f"{transport}://127.0.0.1:{port}"]
            holder = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(holder.kill)
            assert holder.stdout is not None
            assert holder.stdout.readline()
            holders.append(holder)
        clients = [Client(node.port) for node in nodes for _ in range(4)]
        for client in clients:
            stack.callback(client.close)
        # For longer than a lease lasts, so that heartbeats must have come.
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert _taken(clients) == 1
        assert _reclaimed(nodes) == 0
        for holder in holders:
            holder.kill()

        def back() -> None:
            if (count := _taken(clients)) < 4:
                raise NotReady(f"{count} of 4")

        killed_at = time.monotonic()
        eventually(back, within=20, what="all slots")
        assert time.monotonic() < killed_at + 10

        def counted() -> None:
            if _reclaimed(nodes) != 3:
                raise NotReady(str(_reclaimed(nodes)))

        eventually(counted, within=20, what="three lost leases")
        time.sleep(2.5)
        assert _reclaimed(nodes) == 3


def _taken(clients: list[Client]) -> int:
    """How many slots all nodes together give, which are given back."""
    asked = {"policy": "jobs", "key": "k"}
    replies = [client.post("/v1/admit", asked).json for client in clients]
    held = [reply["lease_id"] for reply in replies if reply["lease_id"]]
    for client, lease_id in zip(reversed(clients), held, strict=False):
        assert client.post("/v1/release", {"lease_id": lease_id}).status == 200
    return len(held)


def _reclaimed(nodes: list[Penstock]) -> int:
    count = 0
    for node in nodes:
        client = Client(node.port)
        text = client.get("/metrics").body.decode()
        client.close()
        for line in text.splitlines():
            if line.startswith("penstock_slots_reclaimed_total"):
                count += int(float(line.split()[-1]))
    return count
