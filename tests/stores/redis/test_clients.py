"""Every kind of client, in the mode it has; what a URL may say; what is missing says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult
from urllib.parse import urlsplit as _urlsplit

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import valkey
import valkey.asyncio

from penstock import ConfigInvalidError, UnsupportedError, gcra, rate_limit
from penstock.core._errors import install_line
from penstock.service._logs import shown_store
from penstock.stores import _urls, open_store
from penstock.stores.postgres._connections import parse_url as parse_postgres_url
from penstock.stores.redis import RedisStore
from penstock.stores.redis import _factory as redis_factory
from penstock.stores.redis._factory import parse
from penstock.stores.redis._requests import Address
from tests.servers import Valkey, require
from tests.stores.redis.live import PATIENT_MS, running, url_of
from tests.support.helpers import run


def at(name: str) -> dict[str, Any]:
    server = running(name)
    return {"host": server.host, "port": server.port}


def sentinels(module: Any) -> Any:
    found = running("sentinel")
    return module.Sentinel(found.addresses).master_for(found.master_name)


BLOCKING = {
    "redis": lambda: redis.Redis(**at("valkey")),
    "redis of a pool": lambda: redis.Redis(
        connection_pool=redis.BlockingConnectionPool(**at("redis8"), max_connections=1)
    ),
    "redis cluster": lambda: redis.RedisCluster(**at("cluster")),
    "redis sentinel": lambda: sentinels(redis.sentinel),
    "valkey": lambda: valkey.Valkey(**at("valkey")),
    "valkey cluster": lambda: valkey.ValkeyCluster(**at("cluster")),
}
ASYNCHRONOUS = {
    "redis": lambda: redis.asyncio.Redis(**at("valkey")),
    "redis cluster": lambda: redis.asyncio.RedisCluster(**at("cluster")),
    "redis sentinel": lambda: sentinels(redis.asyncio.sentinel),
    "valkey": lambda: valkey.asyncio.Valkey(**at("redis8")),
    "valkey cluster": lambda: valkey.asyncio.ValkeyCluster(**at("cluster")),
}


@pytest.mark.parametrize("name", BLOCKING)
def test_a_blocking_client_serves_the_sync_calls(name: str, key: str) -> None:
    """Two of three are spent, one is left, and the async calls name the way out."""
    client = BLOCKING[name]()
    store = RedisStore(client, timeout_ms=PATIENT_MS)
    limiter = rate_limit(gcra(3, 600_000), store=store)
    assert [limiter.check(key).remaining for _ in range(2)] == [2, 1]
    assert limiter.peek(key).remaining == 1
    with pytest.raises(UnsupportedError, match="from_url"):
        run(limiter.acheck(key))
    store.close()
    client.close()


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_an_asyncio_client_serves_the_async_calls(name: str, key: str) -> None:
    """Two of three are spent, one is left, and the sync calls name the way out."""

    async def main() -> None:
        client = ASYNCHRONOUS[name]()
        store = RedisStore(client, timeout_ms=PATIENT_MS)
        limiter = rate_limit(gcra(3, 600_000), store=store)
        assert [(await limiter.acheck(key)).remaining for _ in range(2)] == [2, 1]
        assert (await limiter.apeek(key)).remaining == 1
        with pytest.raises(UnsupportedError, match="from_url"):
            limiter.check(key)
        await store.aclose()
        await client.aclose()

    run(main())


@pytest.mark.parametrize("name", ["valkey", "redis8", "cluster", "sentinel"])
def test_a_url_serves_sync_and_async_calls(name: str, key: str) -> None:
    """What one mode spends, the other sees."""
    store = open_store(url_of(name), timeout_ms=PATIENT_MS)
    limiter = rate_limit(gcra(3, 600_000), store=store)

    async def main() -> None:
        assert (await limiter.acheck(key)).remaining == 1
        await store.aclose()

    assert limiter.check(key).remaining == 2
    run(main())


def test_a_unix_socket_and_a_password_will_do(tmp_path: Path, key: str) -> None:
    """The driver connects, so whatever it can reach and log into works."""
    require("valkey")
    path = tmp_path / "s"
    with Valkey(args=["--unixsocket", str(path)]) as server:
        server.call("CONFIG", "SET", "requirepass", "open sesame")
        store = RedisStore.from_url(f"unix://:open%20sesame@{path}?db=3", timeout_ms=PATIENT_MS)
        limiter = rate_limit(gcra(3, 600_000), store=store)
        assert limiter.check(key).remaining == 2
        store.close()


def test_closing_the_store_leaves_the_client_alone(key: str) -> None:
    """It belongs to whoever made it; and a closed store may be used again."""
    client = BLOCKING["redis"]()
    store = RedisStore(client, timeout_ms=PATIENT_MS)
    limiter = rate_limit(gcra(3, 600_000), store=store)
    limiter.check(key)
    store.close()
    store.close()
    assert client.ping()
    assert limiter.check(key).remaining == 1
    store.close()
    client.close()


def test_the_store_takes_no_connection_from_the_clients_pool(key: str) -> None:
    """A pool of one, in use by its owner, does not stand in the way."""
    client = BLOCKING["redis of a pool"]()
    held = client.connection_pool.get_connection()
    store = RedisStore(client, timeout_ms=PATIENT_MS)
    assert rate_limit(gcra(3, 600_000), store=store).check(key)
    store.close()
    client.connection_pool.release(held)
    client.close()


@pytest.mark.parametrize("client", [object(), None, 7])
def test_something_else_is_not_a_client(client: Any) -> None:
    """The message lists what is."""
    with pytest.raises(ConfigInvalidError, match="redis-py, valkey-py or upstash"):
        RedisStore(client)


def test_a_url_is_not_a_client() -> None:
    """The message says where a URL goes."""
    with pytest.raises(ConfigInvalidError, match="from_url"):
        RedisStore("redis://localhost")


def test_a_replica_is_not_a_client() -> None:
    """A replica cannot count."""
    manager = redis.sentinel.Sentinel([("localhost", 1)])
    with pytest.raises(ConfigInvalidError, match="master_for"):
        RedisStore(manager.slave_for("mymaster"))


@pytest.mark.parametrize("timeout_ms", [0, -1, 1.5, True, None])
def test_a_timeout_is_a_number_of_milliseconds(timeout_ms: Any) -> None:
    """Anything else is refused at once."""
    with pytest.raises(ConfigInvalidError, match="timeout_ms"):
        RedisStore.from_url("redis://localhost", timeout_ms=timeout_ms)


@pytest.mark.parametrize("missing", ["redis", "hiredis"])
def test_a_missing_driver_names_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is the command that installs it."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigInvalidError, match=f"needs {missing}, which the extra 'redis'") as it:
        RedisStore.from_url("redis://localhost")
    assert str(it.value).endswith(install_line("redis"))


def test_a_sentinel_url_names_hosts_service_and_database() -> None:
    """Credentials are the servers'; those of the sentinels are parameters."""
    place = parse("redis+sentinel://u:p@a:1,b/main/2?sentinel_password=s&client_name=c")
    assert place.hosts == [("a", 1), ("b", 26379)]
    assert (place.service, place.url) == ("main", "redis://u:p@localhost/2?client_name=c")
    assert place.sentinel_options == {"password": "s"}


def test_a_cluster_url_names_seeds() -> None:
    """As many as one likes, with TLS or without."""
    place = parse("rediss+cluster://a:1,[::1]:2")
    assert (place.cluster, place.hosts) == (True, [("a", 1), ("::1", 2)])
    assert place.url == "rediss://localhost/0"


@pytest.mark.parametrize("strict", [False, True])
def test_several_hosts_are_read_whatever_urlsplit_accepts(
    strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions of Python reject a netloc with text before a bracket, such as Debian's 3.11.2;
    `strict` adds that rule to this one."""
    if strict:
        monkeypatch.setattr("urllib.parse.urlsplit", _strict_urlsplit)
        for module in (_urls, redis_factory):
            monkeypatch.setattr(module, "urlsplit", _strict_urlsplit)
    hosts = "a:1,[::1]:2,[fe80::1]"
    assert parse(f"redis+cluster://{hosts}").hosts == [("a", 1), ("::1", 2), ("fe80::1", 6379)]
    place = parse(f"redis+sentinel://u:p@{hosts}/main/2?client_name=c")
    assert place.hosts == [("a", 1), ("::1", 2), ("fe80::1", 26379)]
    assert place.url == "redis://u:p@localhost/2?client_name=c"
    store = RedisStore.from_url(f"redis+cluster://{hosts}?timeout_ms=70")
    assert store.timeout_ms == 70
    store.close()
    assert shown_store(f"redis+cluster://u:p@{hosts}/0") == f"redis+cluster://{hosts}/0"
    target, _ = parse_postgres_url(f"postgresql://u:p@{hosts}/db?schema=s")
    assert target.url == f"postgresql://u:p@{hosts}/db"
    assert target.redact("p") == "***"


def _strict_urlsplit(url: str, *more: Any) -> SplitResult:
    parts = _urlsplit(url, *more)
    if parts.netloc.rpartition("@")[2].partition("[")[0] and "[" in parts.netloc:
        raise ValueError("Invalid IPv6 URL")
    return parts


@pytest.mark.parametrize(
    "url",
    [
        "redis://a,b",
        "redis://u:a[b@host",
        "redis+cluster://a,[::1",
        "redis+cluster://a,b[::1]",
        "redis+sentinel://a",
        "redis+cluster://a/1",
        "redis+unknown://a",
        "redis://a/x",
        "redis://a:port",
        "http://a",
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigInvalidError):
        RedisStore.from_url(url)


def test_open_store_names_the_schemes_it_knows() -> None:
    """And refuses the others, and what is not a URL."""
    with pytest.raises(ConfigInvalidError, match="redis://"):
        open_store("carrier-pigeon://coop")
    with pytest.raises(ConfigInvalidError, match="string"):
        open_store(7)  # type: ignore[arg-type]


def test_a_memory_url_takes_its_bounds() -> None:
    """`memory://` is a MemoryStore; what it does not know it refuses."""
    assert repr(open_store("memory://?max_keys=5&overflow=deny")) == (
        "MemoryStore(max_keys=5, overflow='deny')"
    )
    for url in ("memory://host", "memory://?max_keys=x", "memory://?mode=red"):
        with pytest.raises(ConfigInvalidError, match="memory://"):
            open_store(url)


def test_an_address_reads_as_people_write_it() -> None:
    """In messages and in the store's repr."""
    assert str(Address("host", 6379)) == "host:6379"
    assert "127.0.0.1" in repr(RedisStore.from_url("redis://127.0.0.1:1"))
