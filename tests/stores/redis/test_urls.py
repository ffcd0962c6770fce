"""What a Redis URL may say beside where the server is."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import ConfigInvalidError, StoreUnavailableError, rate_limit
from penstock.stores import open_store
from penstock.stores.redis import RedisStore


def test_the_url_may_carry_the_options_of_the_store() -> None:
    """A program that knows a store by its URL alone can still set its deadline and its clock."""
    store = open_store("redis://127.0.0.1:1/0?timeout_ms=500&use_server_time=false&client_name=x")
    assert isinstance(store, RedisStore)
    assert (store.timeout_ms, store.reads_own_clock) == (500, False)
    store.close()


@pytest.mark.parametrize("query", ["timeout_ms=soon", "timeout_ms=-1", "use_server_time=maybe"])
def test_nonsense_in_the_options_of_the_url_is_refused(query: str) -> None:
    """With the parameter's name in the text."""
    with pytest.raises(ConfigInvalidError, match=query.partition("=")[0]):
        open_store(f"redis://127.0.0.1:1/0?{query}")


@pytest.mark.parametrize(
    "url",
    [
        "redis://app:s3cret@host/x",
        "redis://app:s3cret@host/0/1",
        "redis://app:s3cret@a,b",
        "redis://app:s3cret@host:port/0",
        "redis://app:s3cret@[host/0",
        "redis://app:s3cret@ho\u2100st/0",
        "redis://app:un/s3cret@host/0",
        "redis://s3cret/un:escaped@host/0",
        "redis://app:1?s3cret@host/0",
        "redis://app:s3cret@host/0?socket_timeout=abc",
        "redis://app:s3cret@host/0?db=zz",
        "redis://app:s3cret@host/0?foo=s3cret",
        "redis://app:s3cret@host/0?timeout_ms=x",
        "redis://app:s3cret@host/0?use_server_time=x",
        "redis://app:s3cret@host/0?path=/x",
        "redis+foo://app:s3cret@host",
        "redis+cluster://app:s3cret@host/1",
        "redis+sentinel://app:s3cret@host",
        "redis+sentinel://:s3cret@host/svc?sentinel_password=s3cret&db=zz",
        "redis://:s3cret@host/0?sentinel_password=s3cret",
        "rediss://:s3cret@host/0?ssl_cert_reqs=zz",
        "unix://:s3cret@/run/redis.sock?foo=1",
        "sqlite://app:s3cret@host/x",
        "sqlite://app:s3cret@[host/x",
        "sqlite:///x#s3cret",
        "sqlite:///x?password=s3cret",
        "sqlite:///x?s3cret@host",
        "memory://app:s3cret@host",
        "memory://app:s3cret@[host",
        "memory://?password=s3cret",
        "memory://?s3cret@host",
        "app:s3cret@host:6379",
        "app:s3cret@redis://host",
        b"redis://app:s3cret@host",
    ],
)
def test_no_message_about_a_url_repeats_its_password(url: Any) -> None:
    """Messages end up in logs. The error is ours, and nothing that a traceback shows tells."""
    with pytest.raises(ConfigInvalidError) as caught:
        open_store(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cret" not in str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("url", ["redis://app:s3cret@host/0", b"redis://app:s3cret@host/0"])
def test_a_url_in_the_place_of_a_client_is_not_repeated(url: Any) -> None:
    """The message says where it goes, and keeps the password to itself."""
    with pytest.raises(ConfigInvalidError, match="from_url") as caught:
        RedisStore(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["redis://{}", "redis+cluster://{}", "redis+sentinel://{}/svc", "unix:///run/x", "rediss://{}"],
)
def test_the_password_is_not_in_the_store_that_people_see(url: str) -> None:
    """Nor in what it says when nobody answers."""
    store = open_store(url.format("app:s3cret@127.0.0.1:1"), timeout_ms=50)
    with pytest.raises(StoreUnavailableError) as caught:
        rate_limit("1/minute", store=store).check("k")
    assert "s3cret" not in f"{store!r} {caught.value}"
    store.close()


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("redis://host/0?timeout=50", "timeout_ms"),
        ("redis://host/0?timout_ms=50", "timeout_ms"),
        ("redis://host/0?client_nam=x", "client_name"),
        ("rediss://host/0?ssl_ca_cert=x", "ssl_ca_certs"),
        ("redis+sentinel://host/svc?sentinel_pasword=x", "sentinel_password"),
        ("redis://host/0?foo=1", "timeout_ms, use_server_time"),
        ("redis://host/0?ssl_ca_certs=x", "Connection"),
        ("redis+cluster://host?max_connections=5", "max_connections"),
    ],
)
def test_a_parameter_that_nobody_knows_is_refused(url: str, near: str) -> None:
    """With the name that was meant, if there is one like it."""
    with pytest.raises(ConfigInvalidError, match=near):
        open_store(url)


def test_a_parameter_of_the_drivers_connection_is_taken() -> None:
    """Those about its timeouts too, which have no effect: URLs are shared with other programs."""
    for query in ("client_name=x", "socket_keepalive=true", "socket_timeout=5", "protocol=3"):
        open_store(f"redis://127.0.0.1:1/0?{query}").close()
    open_store("rediss://127.0.0.1:1/0?ssl_cert_reqs=none&ssl_check_hostname=false").close()
