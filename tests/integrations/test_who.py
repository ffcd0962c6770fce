"""Who asks: addresses behind proxies, which nobody outside can make up, and other keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigInvalidError
from penstock.integrations import by_address, by_api_key, by_header
from penstock.integrations._who import AddressKey, Key, reading

PROXIES = ["10.0.0.0/8", "2001:db8:ffff::/48"]


class Asked:
    """A request, and the reader of it."""

    def __init__(self, peer: str | None = "203.0.113.9", **headers: str) -> None:
        self._peer = peer
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def peer(self, request: Any) -> str | None:
        return self._peer

    def header(self, request: Any, name: str) -> str | None:
        return self._headers.get(name)

    def method(self, request: Any) -> str:
        return "GET"

    def path(self, request: Any) -> str:
        return "/"

    def route(self, request: Any) -> str:
        return "/"


def client(asked: Asked, trusted: Any = None, **options: Any) -> str:
    return by_address(trusted, **options).read(asked, None)


def key_of(key: Key, asked: Asked, secret: bytes | None = None) -> Any:
    return reading(key, asked, AddressKey(), secret)(None)


def test_without_trusted_proxies_the_header_is_not_looked_at() -> None:
    """Whoever sends the request can write it."""
    assert client(Asked(x_forwarded_for="1.2.3.4", forwarded="for=1.2.3.4")) == "203.0.113.9"


def test_a_peer_that_is_no_proxy_is_the_client_whatever_it_says() -> None:
    """Somebody who reaches the app past its proxies gains nothing."""
    assert client(Asked("203.0.113.9", x_forwarded_for="1.2.3.4"), PROXIES) == "203.0.113.9"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("1.1.1.1, 198.51.100.7", "198.51.100.7"),
        ("1.1.1.1, 198.51.100.7, 10.1.1.1,10.2.2.2", "198.51.100.7"),
        ("10.9.9.9, 198.51.100.7, 10.1.1.1", "198.51.100.7"),
        ("198.51.100.7:4711", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("[2001:db8:1:2:3::4]:443", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("1.1.1.1, 2001:db8:ffff::1", "1.1.1.1"),
        ("10.3.3.3, 10.1.1.1", "10.3.3.3"),
    ],
)
def test_the_rightmost_address_that_is_no_proxy_is_the_client(header: str, expected: str) -> None:
    """What stands left of it was written by the client."""
    assert client(Asked("10.0.0.1", x_forwarded_for=header), PROXIES) == expected


@pytest.mark.parametrize(
    "header",
    ["", ",", "unknown", "_hidden", "1.2.3.4.5", "1.2.3.4, junk", "1.2.3.4, ", "[::1", "a" * 5000],
)
def test_what_is_no_address_falls_back_to_the_peer(header: str) -> None:
    """And never to what stands left of it, which anybody may have written."""
    assert client(Asked("10.0.0.1", x_forwarded_for=header), PROXIES) == "10.0.0.1"


@given(st.text(max_size=60))
def test_a_client_cannot_write_itself_another_address(spoofed: str) -> None:
    """Whatever it sends, its proxy appends what it saw."""
    header = f"{spoofed},198.51.100.7"
    assert client(Asked("10.0.0.1", x_forwarded_for=header), PROXIES) == "198.51.100.7"
    assert client(Asked("10.0.0.1", x_forwarded_for=header), 1) == "198.51.100.7"


def test_a_number_of_proxies_counts_from_the_right() -> None:
    """The nearest is the peer; with less in the list than proxies, somebody came past them."""
    asked = Asked("10.0.0.1", x_forwarded_for="1.1.1.1, 198.51.100.7, 10.1.1.1")
    assert client(asked, 1) == "10.1.1.1"
    assert client(asked, 2) == "198.51.100.7"
    assert client(asked, 4) == "10.0.0.1"


def test_forwarded_is_read_where_the_proxies_write_that() -> None:
    """RFC 7239: quotes, ports, brackets, names in any case; the other header is left alone."""
    header = 'for=1.1.1.1, For="[2001:db8:1:2::9]:4711";proto=https;by=10.0.0.2, for=10.1.1.1'
    asked = Asked("10.0.0.1", forwarded=header, x_forwarded_for="9.9.9.9")
    read = client(asked, PROXIES, forwarded_header="Forwarded")
    assert read == "2001:db8:1:2::/64"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('for=198.51.100.7;host="x,for=6.6.6.6"', "198.51.100.7"),
        ('for=198.51.100.7;host="x;for=6.6.6.6"', "198.51.100.7"),
        (r'for=198.51.100.7;host="\",for=6.6.6.6"', "198.51.100.7"),
        ('for=6.6.6.6, for=", for=198.51.100.7;host="x"', "10.0.0.1"),
        (r'for=6.6.6.6, for=", for=198.51.100.7;host="x\"y"', "10.0.0.1"),
        ("for=6.6.6.6, for=198.51.100.7;for=6.6.6.6", "10.0.0.1"),
        ("for=6.6.6.6, by=10.0.0.2", "10.0.0.1"),
        ("for=6.6.6.6, for=_hidden", "10.0.0.1"),
        ("for=6.6.6.6, for=unknown", "10.0.0.1"),
        ("for=[2001:db8:1:2::9]:80;;proto=http", "2001:db8:1:2::/64"),
    ],
)
def test_what_a_proxy_quotes_in_forwarded_is_no_address(header: str, expected: str) -> None:
    """The `host` is what the client has sent, and may hold commas; what cannot be read as a whole
    is the peer's."""
    asked = Asked("10.0.0.1", forwarded=header)
    for trusted in (PROXIES, 1):
        assert client(asked, trusted, forwarded_header="forwarded") == expected


@given(st.text(max_size=60), st.text(st.characters(exclude_characters='"\\'), max_size=30))
def test_a_client_cannot_write_itself_another_address_into_forwarded(sent: str, host: str) -> None:
    """Its proxy appends what it saw, and quotes the host."""
    asked = Asked("10.0.0.1", forwarded=f'{sent},for=198.51.100.7;host="{host}"')
    found = client(asked, PROXIES, forwarded_header="forwarded")
    assert found in ("198.51.100.7", "10.0.0.1")


def test_a_header_that_the_proxies_do_not_write_is_never_read() -> None:
    """nginx passes `Forwarded` on as the client sent it."""
    asked = Asked("10.0.0.1", forwarded="for=1.1.1.1", x_forwarded_for="198.51.100.7")
    assert client(asked, PROXIES) == "198.51.100.7"


def test_a_unix_socket_is_a_proxy_where_it_is_named() -> None:
    """It has no address to be in a network."""
    asked = Asked(None, x_forwarded_for="198.51.100.7")
    assert client(asked, ["unix"]) == "198.51.100.7"
    assert client(asked, PROXIES) == "unknown"
    assert client(Asked(""), 1) == "unknown"


def test_ipv6_counts_by_its_network() -> None:
    """A client has a whole /64 to choose from."""
    assert client(Asked("2001:db8::1")) == client(Asked("2001:db8::ffff:2")) == "2001:db8::/64"
    assert client(Asked("2001:db8::1"), ipv6_prefix=128) == "2001:db8::1"
    assert client(Asked("2001:db8:0:7f::1"), ipv6_prefix=56) == "2001:db8::/56"
    assert client(Asked("fe80::1%eth0")) == "fe80::/64"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (0, "trusted_proxies must be an integer from 1"),
        ("10.0.0.1/8", "has host bits set"),
        (["localhost"], "such as '10.0.0.0/8'"),
        ([], "must be a number of proxies or networks"),
    ],
)
def test_proxies_that_cannot_be_are_refused(wrong: Any, message: str) -> None:
    """When the app is made, and not with the first request."""
    with pytest.raises(ConfigInvalidError, match=message):
        by_address(wrong)


def test_an_api_key_counts_before_the_address() -> None:
    """The bearer's token, whatever the case of the scheme; else the address."""
    assert key_of(by_api_key(), Asked(authorization="bearer  abc")) == "key abc"
    assert key_of(by_api_key(), Asked(authorization="Basic abc")) == "203.0.113.9"
    assert key_of(by_api_key("X-API-Key"), Asked(x_api_key="abc")) == "key abc"
    assert key_of(by_header("x-tenant"), Asked()) == "203.0.113.9"


def test_a_header_cannot_name_the_address_of_somebody_else() -> None:
    """Else a client could use up another's limit."""
    spoof = key_of(by_header("x-tenant"), Asked(x_tenant="198.51.100.7"))
    assert spoof != key_of(by_header("x-tenant"), Asked("198.51.100.7"))


def test_functions_may_return_numbers_nothing_or_an_awaitable() -> None:
    """None leaves the limit out; an empty text stands for the address."""
    assert key_of(lambda request: 42, Asked()) == "42"
    assert key_of(lambda request: None, Asked()) is None
    assert key_of(lambda request: "", Asked()) == "203.0.113.9"

    async def later(request: object) -> str:
        await asyncio.sleep(0)
        return "alice"

    async def ask() -> Any:
        return await key_of(later, Asked())

    assert asyncio.run(ask()) == "alice"
    with pytest.raises(ConfigInvalidError, match="a key function must return"):
        key_of(lambda request: 4.5, Asked())


@pytest.mark.parametrize("value", ["a" * 10_000, "\udcff" * 3, "ä" * 3000])
def test_whatever_a_header_holds_becomes_a_key_that_stores_take(value: str) -> None:
    """Clients choose it; it must not be a way to an error."""
    key = key_of(by_header("x-tenant"), Asked(x_tenant=value))
    assert key.startswith("sha256 ")
    assert len(key.encode()) < 100


def test_hashed_keys_tell_nobody_who_it_was() -> None:
    """The same client has the same key under one secret, and another under another."""
    one, two = b"one secret of many", b"two secrets of many"
    for key in (by_address(), by_header("x-tenant"), lambda request: "alice"):
        keys = {key_of(key, Asked(), secret) for secret in (one, two, one)}
        assert len(keys) == 2
        assert not any("203.0" in each or "alice" in each for each in keys)
        assert {len(each) for each in keys} == {64}
