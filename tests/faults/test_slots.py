"""Slots while their holders die, stand still or lose the store, and while the store fails over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from penstock import Charge, Limiter, PenstockError, rate_limit, slots
from penstock.stores import open_store
from tests.servers import (
    FaultProxy,
    NotReady,
    RedisCluster,
    RedisSentinel,
    eventually,
    require,
)
from tests.stores.postgres import live as postgres
from tests.stores.redis.live import new_key, running, url_of

LIMIT, TTL_MS = 2, 1_000
MANY = 1_000


class Holders:
    """Processes that take slots of one key, and what is seen of them from outside."""

    def __init__(self, url: str, folder: Path, ttl_ms: int) -> None:
        self.url, self.prefix, self.ttl_ms = url, new_key(), ttl_ms
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.most = 0
        self._over = threading.Event()
        # As if there were more of them: how many are held is what is missing.
        self.limiter = rate_limit(slots(MANY, ttl_ms), store=open_store(url), prefix=self.prefix)
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def start(self, hold_s: float, url: str = "", how: str = "renews") -> subprocess.Popen[bytes]:
        log = self.folder / f"holder-{len(self.processes)}"
        arguments = [self.prefix, str(LIMIT), str(self.ttl_ms), str(hold_s), str(log), how]
        command = [sys.executable, "-m", "tests.faults.slot_holder", url or self.url, *arguments]
        self.processes.append(subprocess.Popen(command))
        return self.processes[-1]

    def held(self) -> int:
        return MANY - self.limiter.peek("k").remaining

    def expect(self, count: int, within: float = 30) -> None:
        def there() -> None:
            with suppress(PenstockError):
                if self.held() == count:
                    return
            raise NotReady("other slots")

        eventually(there, within=within, what=f"{count} slots held")

    def _watch(self) -> None:
        """The most that were held at once, by the clock of the store."""
        store = open_store(self.url)
        limiter = rate_limit(slots(MANY, self.ttl_ms), store=store, prefix=self.prefix)
        while not self._over.wait(0.005):
            with suppress(PenstockError):
                self.most = max(self.most, MANY - limiter.peek("k").remaining)
        store.close()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def close(self) -> None:
        self.kill()
        self._over.set()
        self._watcher.join()
        self.limiter.store.close()

    def spans(self) -> dict[str, tuple[float, float]]:
        """From when until when each slot was counted on, by its id."""
        spans: dict[str, tuple[float, float]] = {}
        for log in self.folder.glob("holder-*[0-9]"):
            for line in log.read_text().splitlines():
                slot_id, _, at = line.partition(" ")
                if at:
                    first, _ = spans.setdefault(slot_id, (float(at), float(at)))
                    spans[slot_id] = first, float(at)
        return spans

    def lost(self) -> list[str]:
        """The ids of which holders that keep their charges renewed were told."""
        found = sorted(self.folder.glob("holder-*-lost"))
        return [slot_id for log in found for slot_id in log.read_text().split()]

    def together(self) -> int:
        """The most that counted on a slot at the same time."""
        turns = sorted(
            turn for first, last in self.spans().values() for turn in ((first, 0, 1), (last, 1, -1))
        )
        most = now = 0
        for _, _, step in turns:
            now += step
            most = max(most, now)
        return most


@contextmanager
def holders(url: str, folder: Path, ttl_ms: int = TTL_MS) -> Iterator[Holders]:
    made = Holders(url, folder, ttl_ms)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=["valkey", "postgres", "sqlite"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int]:
    """Its URL, without options but for those it needs, and its port; 0 for a file."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/slots.db?timeout_ms=500", 0
    if request.param == "valkey":
        valkey = running("valkey")
        return f"{valkey.url}?timeout_ms=500", valkey.port
    url = postgres.url_of(postgres.new_table(), timeout_ms=500)
    return url, postgres.running().port


@pytest.mark.parametrize("how", ["renews", "kept", "awaits"])
def test_slots_through_the_deaths_of_their_holders(
    server: tuple[str, int], tmp_path: Path, how: str
) -> None:
    """Killed, stopped for longer than a ttl, cut off for longer than a ttl: never more than the
    limit are held, nobody is given a slot that somebody counts on, and all come back. Who keeps its
    charge renewed is told of the loss, once. Nobody is cut off from a file."""
    url, port = server
    with ExitStack() as stack:
        fleet = stack.enter_context(holders(url, tmp_path))
        proxy = stack.enter_context(FaultProxy(port)) if port else None
        # These two hold all slots, and would go on doing so.
        cut_off = url.replace(f":{port}", f":{proxy.port}") if proxy else url
        first, stopped = fleet.start(60, cut_off, how), fleet.start(60, how=how)
        fleet.expect(LIMIT)
        eventually(lambda: _are(fleet, LIMIT), within=30, what="the first of them")
        before = set(fleet.spans())
        killed, _ = fleet.start(0.1, how=how), fleet.start(0.1, how=how)
        if proxy:
            proxy.cut_after_request()
        else:
            first.kill()
        os.kill(stopped.pid, signal.SIGSTOP)
        eventually(lambda: _are(fleet, 2 * LIMIT + 1), within=30, what="the others")
        killed.kill()
        os.kill(stopped.pid, signal.SIGCONT)
        if proxy:
            proxy.restore()
        if how != "renews":
            aware = LIMIT if proxy else LIMIT - 1
            eventually(lambda: _heard(fleet, before, aware), within=30, what="the news")
        time.sleep(0.5)
        if how != "renews":
            _heard(fleet, before, aware)
        fleet.kill()
        # By the clock of the store, which is that of this machine.
        assert fleet.limiter.forecast("k").full_at <= time.time() * 1000 + TTL_MS + 1
        fleet.expect(0)
        assert fleet.most == LIMIT
        assert fleet.together() <= LIMIT


def test_slots_through_a_failover(tmp_path: Path) -> None:
    """Holders go on renewing what the replica knows of; those who wait get nothing meanwhile, and
    everything afterwards."""
    require("valkey")
    with RedisSentinel() as sentinel, ExitStack() as stack:
        url = f"{sentinel.url_of_all}?timeout_ms=1000"
        fleet = stack.enter_context(holders(url, tmp_path, ttl_ms=9_000))
        first = [fleet.start(60) for _ in range(LIMIT)]
        fleet.expect(LIMIT)

        def replicated() -> None:
            if sentinel.replica.call("ZCARD", f"{fleet.prefix}:k") != LIMIT:
                raise NotReady("the replica is behind")

        eventually(replicated, within=20, what="the replica")
        before = set(fleet.spans())
        later = fleet.start(60)
        sentinel.crash_master()
        fleet.expect(LIMIT)
        since = time.monotonic()
        eventually(lambda: _go_on(fleet, since), within=30, what="those who hold slots")
        assert set(fleet.spans()) == before
        for holder in first:
            holder.kill()
        eventually(lambda: _are(fleet, LIMIT + 1), within=30, what="a slot for who waited")
        later.kill()
        assert fleet.most == LIMIT
        assert fleet.together() <= LIMIT


def test_a_master_that_was_frozen_and_replaced_gives_no_slots_away() -> None:
    """It takes itself for the master until the sentinels tell it otherwise. Whoever had nothing to
    ask meanwhile asks them first."""
    require("valkey")
    with RedisSentinel() as sentinel, ExitStack() as stack:
        url = f"{sentinel.url_of_all}?timeout_ms=1000"
        busy, idle = (
            stack.enter_context(rate_limit(slots(LIMIT, 60_000), store=url, prefix="p"))
            for _ in range(2)
        )
        assert idle.peek("k").remaining == LIMIT
        old = sentinel.master
        old.pause()
        held = [_reserved(busy) for _ in range(LIMIT)]
        sentinel.wait_new_master(old)
        old.resume()
        assert not idle.reserve("k")
        assert all(charge.renew() for charge in held)


def _reserved(limiter: Limiter) -> Charge:
    """As soon as there is a master."""

    def reserve() -> Charge:
        with suppress(PenstockError):
            if charge := limiter.reserve("k"):
                return charge
        raise NotReady("no slot yet")

    return eventually(reserve, within=60, what="a slot")


def test_slots_of_a_cluster_whose_keys_move(tmp_path: Path) -> None:
    """To another master and back, while they are held, waited for, renewed and given back."""
    cluster: RedisCluster = running("cluster")
    cluster.wait_agreed()
    with holders(f"{url_of('cluster')}?timeout_ms=1000", tmp_path, ttl_ms=5_000) as fleet:
        for how in ("renews", "kept", "awaits"):
            fleet.start(0.1, how=how)
        key = f"{fleet.prefix}:k"
        home = cluster.node_of(key)
        away = next(node for node in cluster.nodes if node is not home)
        for source, target in ((home, away), (away, home)):
            _go_on_for(fleet, 5)
            with cluster.moving(key, source, target):
                _go_on_for(fleet, 5)
                source.call("MIGRATE", target.host, target.port, key, 0, 1000)
                _go_on_for(fleet, 5)
            cluster.wait_agreed()
        _go_on_for(fleet, 5)
        fleet.kill()
        assert fleet.most <= LIMIT
        assert fleet.together() <= LIMIT
        assert fleet.lost() == []


def _go_on_for(fleet: Holders, more: int) -> None:
    """Until so many more have had a slot."""
    count = len(fleet.spans()) + more
    eventually(lambda: _are(fleet, count), within=30, what=f"{more} more")


def _heard(fleet: Holders, ids: set[str], count: int) -> None:
    """Of so many of these ids, once each."""
    told = [slot_id for slot_id in fleet.lost() if slot_id in ids]
    assert len(told) == len(set(told))
    if len(told) != count:
        raise NotReady(f"{told} so far")


def _go_on(fleet: Holders, since: float) -> None:
    if min(last for _, last in fleet.spans().values()) < since:
        raise NotReady("not all of them")


def _are(fleet: Holders, count: int) -> None:
    if len(fleet.spans()) < count:
        raise NotReady(f"{len(fleet.spans())} slots so far")
