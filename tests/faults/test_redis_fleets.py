"""RedisStore on Sentinel and Cluster when nodes fail, freeze and move."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.servers import FaultProxy, NotReady, RedisCluster, RedisSentinel, eventually, require
from tests.stores.redis.live import PATIENT_MS, new_key, running, url_of

from .redis_calls import TIMEOUT_MS, Either, fails_in_time, retry


@pytest.fixture(scope="module")
def sentinel() -> Iterator[RedisSentinel]:
    require("valkey")
    with RedisSentinel() as fleet:
        yield fleet


@pytest.mark.parametrize("how", ["failover", "crash_master"])
def test_a_failover_is_followed(either: Either, sentinel: RedisSentinel, how: str) -> None:
    """Typed errors while there is no master; then the new one, script cache empty, counts on."""
    sentinel.wait_healthy()
    limiter, key = either.limiter(sentinel.url, timeout_ms=1_000), new_key()
    assert [either.check(limiter, key).remaining for _ in range(3)] == [49, 48, 47]
    _wait_replicated(sentinel, key)
    getattr(sentinel, how)()
    assert retry(lambda: either.check(limiter, key)).remaining <= 46
    if how == "crash_master":
        for server in sentinel.servers:
            if not server.running:
                server.restart()
        sentinel.wait_healthy()


def _wait_replicated(sentinel: RedisSentinel, key: str) -> None:
    def look() -> None:
        if sentinel.replica.call("EXISTS", key) != 1:
            raise NotReady("the replica is behind")

    eventually(look, within=20, what="the replica")


def test_a_frozen_sentinel_costs_no_call(either: Either, sentinel: RedisSentinel) -> None:
    """The first of three is asked, does not answer, and leaves time to ask the second."""
    sentinel.wait_healthy()
    sentinel.sentinels[0].pause()
    try:
        limiter, key = either.limiter(sentinel.url_of_all, timeout_ms=1_000), new_key()
        assert [either.check(limiter, key).remaining for _ in range(3)] == [49, 48, 47]
        limiter.store._router.topology.lost(limiter.store._router.topology.master)
        start = time.monotonic()
        assert either.check(limiter, key).remaining == 46
        assert time.monotonic() - start < 0.4, "the frozen one was asked first again"
    finally:
        sentinel.sentinels[0].resume()
        sentinel.wait_healthy()


@pytest.mark.parametrize("fault", ["swallow", "refuse"])
def test_a_master_serves_on_where_no_sentinel_answers(
    either: Either, sentinel: RedisSentinel, fault: str
) -> None:
    """They are asked again and again who it is, and some time of a call is kept for it."""
    sentinel.wait_healthy()
    with FaultProxy(sentinel.port) as proxy:
        url = f"redis+sentinel://127.0.0.1:{proxy.port}/{sentinel.master_name}"
        limiter, key = either.limiter(url, timeout_ms=1_000), new_key()
        assert either.check(limiter, key).remaining == 49
        getattr(proxy, fault)()
        for left in (48, 47):
            time.sleep(1.1)
            assert either.check(limiter, key).remaining == left


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """One whose nodes serve their own keys without the others."""
    require("valkey")
    with RedisCluster() as found:
        for node in found.nodes:
            node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
        yield found


def test_a_frozen_seed_costs_no_call(either: Either, cluster: RedisCluster) -> None:
    """The first of three is asked, does not answer, and leaves time to ask the second."""
    key = next(f"k{n}" for n in range(100) if cluster.node_of(f"k{n}") is cluster.nodes[1])
    cluster.nodes[0].pause()
    limiter = either.limiter(cluster.url_of_all, timeout_ms=1_000)
    assert [either.check(limiter, key).remaining for _ in range(3)] == [49, 48, 47]


def test_a_frozen_node_fails_its_own_keys_only(either: Either, cluster: RedisCluster) -> None:
    """However often its keys are asked for, those of the others are all answered, at once."""
    keys = {cluster.nodes.index(cluster.node_of(f"k{n}")): f"k{n}" for n in range(100)}
    limiter = either.limiter(cluster.url_of_all, timeout_ms=2 * TIMEOUT_MS)
    for key in keys.values():
        either.check(limiter, key)
    cluster.nodes[0].pause()
    for left in range(48, 38, -1):
        fails_in_time(lambda: either.check(limiter, keys[0]), "may have been charged")
        assert [either.check(limiter, keys[n]).remaining for n in (1, 2)] == [left] * 2


def test_a_cluster_without_one_of_its_nodes_serves_the_others(either: Either) -> None:
    """Keys of the dead node fail in time, the others go on, and its return needs no help."""
    require("valkey")
    with RedisCluster(durable=True) as cluster:
        url = cluster.url.replace("redis://", "redis+cluster://")
        limiter = either.limiter(url, timeout_ms=TIMEOUT_MS)
        keys = {cluster.node_of(f"k{n}").port: f"k{n}" for n in range(30)}
        for key in keys.values():
            retry(lambda key=key: either.check(limiter, key))  # type: ignore[misc]
        victim = cluster.nodes[1]
        victim.kill()
        fails_in_time(lambda: either.check(limiter, keys[victim.port]), "not charged")
        victim.restart()
        cluster.wait_healthy()
        for key in keys.values():
            assert retry(lambda key=key: either.check(limiter, key)).remaining == 48  # type: ignore[misc]


def test_a_moved_slot_is_followed_and_counts_on(either: Either) -> None:
    """A slot migrates to another master between two checks."""
    cluster: RedisCluster = running("cluster")
    cluster.wait_agreed()
    limiter = either.limiter(url_of("cluster"), timeout_ms=PATIENT_MS)
    key = new_key()
    assert either.check(limiter, key).remaining == 49
    source = cluster.node_of(key)
    target = next(node for node in cluster.nodes if node is not source)
    with cluster.moving(key, source, target):
        source.call("MIGRATE", target.host, target.port, key, 0, 1000)
        # The key has left, the slot has not: ASK.
        assert either.check(limiter, key).remaining == 48
    assert either.check(limiter, key).remaining == 47
    cluster.wait_agreed()
    # Back again, so that the cluster is as the other tests expect it.
    with cluster.moving(key, target, source):
        target.call("MIGRATE", source.host, source.port, key, 0, 1000)
    cluster.wait_agreed()
    assert either.check(limiter, key).remaining == 46
