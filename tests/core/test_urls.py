"""A limiter straight from a URL: it opens the store, closes it, and travels as the URL."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigInvalidError, ManualClock, MemoryStore, gcra, rate_limit
from penstock.core._store import from_its_url
from penstock.stores import open_store
from penstock.stores._opening import SCHEMES
from penstock.stores.redis import RedisStore
from tests.servers import NotReady, Valkey, eventually, require
from tests.stores.redis.live import PATIENT_MS


@pytest.fixture
def valkey() -> Any:
    require("valkey")
    with Valkey() as server:
        yield server


def alone(server: Valkey) -> None:
    """Nobody but who asks is connected."""
    if len(server.call("CLIENT", "LIST").splitlines()) > 1:
        raise NotReady("somebody is connected")


def url_on(server: Valkey) -> str:
    return f"{server.url}?timeout_ms={PATIENT_MS}"


def test_a_limiter_from_a_url_closes_what_it_opened(valkey: Valkey) -> None:
    """By `close` and by `with`; the counts stay where they are."""
    for spent in (1, 2):
        with rate_limit(gcra(5, 3_600_000), store=url_on(valkey), prefix="api") as limiter:
            assert isinstance(limiter.store, RedisStore)
            assert limiter.check("k").remaining == 5 - spent
            with pytest.raises(NotReady):
                alone(valkey)
        eventually(lambda: alone(valkey), within=20, what="closed by with")
    limiter = rate_limit(gcra(5, 3_600_000), store=url_on(valkey), prefix="api")
    assert limiter.check("k").remaining == 2
    limiter.close()
    eventually(lambda: alone(valkey), within=20, what="closed by close")


def test_its_async_twin_closes_both_kinds_of_connection(valkey: Valkey) -> None:
    """By `aclose` and by `async with`."""

    async def main() -> None:
        async with rate_limit("5/hour", store=url_on(valkey)) as limiter:
            assert (await limiter.acheck("k")).remaining == 4
            assert limiter.check("k").remaining == 3
        eventually(lambda: alone(valkey), within=20, what="closed by async with")
        limiter = rate_limit("5/hour", store=url_on(valkey))
        assert (await limiter.acheck("k")).remaining == 2
        await limiter.aclose()
        eventually(lambda: alone(valkey), within=20, what="closed by aclose")

    asyncio.run(main())


def test_it_is_pickled_as_what_it_was_made_from(tmp_path: Path) -> None:
    """The other one opens a store of its own, and closes it."""
    limiter = rate_limit("5/hour", store=f"sqlite:///{tmp_path}/limits.db", prefix="api")
    limiter.check("k")
    other = pickle.loads(pickle.dumps(limiter))
    assert other.store is not limiter.store
    assert other.check("k").remaining == 3
    assert pickle.loads(pickle.dumps(other)).check("k").remaining == 2
    other.close()
    assert limiter.check("k").remaining == 1
    limiter.close()


def test_a_url_of_memory_is_a_store_by_the_limiters_clock() -> None:
    """Its options are those of the store."""
    clock = ManualClock(1_000)
    limiter = rate_limit("2/second", store="memory://?max_keys=7", clock=clock)
    assert isinstance(limiter.store, MemoryStore)
    assert limiter.store.max_keys == 7
    assert [bool(limiter.check("k")) for _ in range(3)] == [True, True, False]
    clock.advance(1_000)
    assert limiter.check("k")
    limiter.close()


class Watched(MemoryStore):
    """Knows whether it was closed."""

    closed = 0

    @classmethod
    @from_its_url
    def from_url(cls, url: str, **options: Any) -> Watched:
        return cls()

    def close(self) -> None:
        type(self).closed += 1
        super().close()


def test_a_limiter_that_cannot_be_made_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one on a store that it was given leaves that to its owner."""
    monkeypatch.setitem(SCHEMES, "watched", f"{__name__}:Watched.from_url")
    for wrong in ({"prefix": "a\nb" * 5_000}, {"max_waiters": -1}, {"clock": 5}):
        before = Watched.closed
        with pytest.raises(ConfigInvalidError):
            rate_limit("5/second", store="watched://", **wrong)
        assert Watched.closed == before + 1
        with pytest.raises(ConfigInvalidError):
            rate_limit("5/second", store=Watched(), **wrong)
        assert Watched.closed == before + 1
    with pytest.raises(ConfigInvalidError, match="use_server_time=False"):
        rate_limit("5/second", store="redis://localhost:1", clock=ManualClock())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgress://db", "'postgress'; did you mean 'postgres://'?"),
        ("postgresq://db", "did you mean 'postgresql://'?"),
        ("reddis://h", "did you mean 'redis://'?"),
        ("REDISS+CLUTSER://h", "did you mean 'rediss+cluster://'?"),
        ("sqllite:///x.db", "did you mean 'sqlite://'?"),
        ("dynamo://table", "did you mean 'dynamodb://'?"),
        ("memcached://h", "'memcached'; use one of d1://"),
        ("redis", "did you mean 'redis://...'?"),
        ("redis:localhost:6379", "did you mean 'redis://...'?"),
        ("localhost:6379", "a scheme and ://, such as redis://localhost:6379; use one of d1://"),
        ("", "a scheme and ://"),
    ],
)
def test_a_near_miss_of_a_scheme_is_told_what_was_meant(url: str, says: str) -> None:
    """Wherever a URL is taken."""
    for opened in (lambda: open_store(url), lambda: rate_limit("5/second", store=url)):
        with pytest.raises(ConfigInvalidError) as refused:
            opened()
        assert says in str(refused.value)


@pytest.mark.parametrize("url", ["redis:user:s3cret@host", "s3cret@host", "s3cret/x://host"])
def test_what_may_be_a_password_is_not_repeated(url: str) -> None:
    """Only a scheme is."""
    with pytest.raises(ConfigInvalidError) as refused:
        rate_limit("5/second", store=url)
    assert "s3cret" not in str(refused.value)
