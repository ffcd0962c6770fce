"""Identifies clients: by their address, behind proxies too, and by keys of other kinds.

The peer of a connection cannot be forged. `X-Forwarded-For` can: a client may send the header with
any addresses, and each proxy appends the address that it saw. So the list is read from the right,
past the trusted proxies, and the first address that is not a trusted proxy is the client. If an
entry is not an address, reading stops, and the peer is used.

Of `X-Forwarded-For` and `Forwarded` only one is read, the one that the proxies write: a proxy that
appends to the first forwards the second as the client sent it.

IPv6 clients are identified by their network, /64 by default: each has 2**64 addresses to choose
from.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Protocol

from ..core._validation import reject, require_int, shown

__all__ = [
    "NO_ROUTE",
    "AddressKey",
    "HeaderKey",
    "Key",
    "KeyFunction",
    "RequestReader",
    "TrustedProxies",
    "by_address",
    "by_api_key",
    "by_header",
    "discard",
    "network_of",
    "parsed",
    "reading",
    "require_secret",
    "stored_by",
]

Address = IPv4Address | IPv6Address
TrustedProxies = int | str | Sequence[str] | None
"""The number of proxies in front, or their networks, of which `"unix"` is a Unix socket."""

KeyFunction = Callable[[Any], Any]
"""A function, sync or async, from a request of the framework to a key; None skips the limit."""

UNKNOWN = "unknown"
"""The key of a client without an address, such as one on a Unix socket."""

NO_ROUTE = "no route"
"""The template of all paths without a route, so that a scan of many paths has one limit."""

# A key longer than this is kept as its digest.
_LONGEST = 512
_SHORTEST_SECRET = 16


class RequestReader(Protocol):
    """Reads the request of a framework."""

    def peer(self, request: Any) -> str | None:
        """The address that the connection came from."""

    def header(self, request: Any, name: str) -> str | None:
        """A header, all of its lines joined by commas; the name is in lower case."""

    def method(self, request: Any) -> str:
        """`GET` and the like."""

    def path(self, request: Any) -> str:
        """The path of the request."""

    def route(self, request: Any) -> str:
        """The template of the route, such as `/users/{id}`; `NO_ROUTE` where there is none."""


class AddressKey:
    """The client's address: the result of `by_address`."""

    def __init__(
        self,
        trusted_proxies: TrustedProxies = None,
        *,
        forwarded_header: str = "x-forwarded-for",
        ipv6_prefix: int = 64,
    ) -> None:
        self._hops, self._networks, self._trusts_unix = _trusted(trusted_proxies)
        self._trusts = trusted_proxies is not None
        if not isinstance(forwarded_header, str) or not forwarded_header:
            reject(f"forwarded_header must be the name of a header, not {shown(forwarded_header)}")
        self._header = forwarded_header.lower()
        self._listed = _nodes if self._header == "forwarded" else _entries
        self._prefix = require_int("ipv6_prefix", ipv6_prefix, 1, 128)

    def read(self, reader: RequestReader, request: Any) -> str:
        """The key of the client that sent this request."""
        peer = reader.peer(request)
        if self._trusts and (self._hops or self._is_trusted(parsed(peer), peer)):
            told = reader.header(request, self._header)
            if told:
                client = self._client(self._listed(told))
                if client is not None:
                    return network_of(client, self._prefix)
        if not peer:
            return UNKNOWN
        if ":" not in peer:
            return peer
        address = parsed(peer)
        return peer if address is None else network_of(address, self._prefix)

    def reading(self, reader: RequestReader) -> Callable[[Any], str]:
        """`read` as a function of the request, with a shortcut if the peer's address is the key."""
        if self._trusts:
            return partial(self.read, reader)
        read_peer, read = reader.peer, self.read

        def read_plainly(request: Any) -> str:
            peer = read_peer(request)
            return peer if peer and ":" not in peer else read(reader, request)

        return read_plainly

    def _client(self, entries: list[str]) -> Address | None:
        """The client according to the proxies; None if they do not report it."""
        if self._hops:
            # The nearest proxy is the peer; each proxy has appended the address of the one before.
            return parsed(entries[-self._hops]) if len(entries) >= self._hops else None
        for entry in reversed(entries):
            address = parsed(entry)
            if address is None or not self._is_trusted(address, entry):
                return address
        # All are trusted proxies: the farthest one is the client.
        return parsed(entries[0]) if entries else None

    def _is_trusted(self, address: Address | None, text: str | None) -> bool:
        if address is None:
            return self._trusts_unix and not text
        return any(address in network for network in self._networks)


class HeaderKey:
    """The value of a header: the result of `by_header` and `by_api_key`."""

    def __init__(self, header: str, *, scheme: str = "") -> None:
        if not isinstance(header, str) or not header:
            reject(f"header must be the name of a header, not {shown(header)}")
        self._header = header.lower()
        self._scheme = scheme.lower()

    def read(self, reader: RequestReader, request: Any) -> str | None:
        """The value of the header; None if it is missing."""
        value = (reader.header(request, self._header) or "").strip()
        if self._scheme:
            scheme, _, value = value.partition(" ")
            value = value.strip() if scheme.lower() == self._scheme else ""
        # Marked, so that a header cannot take the key of another client's address.
        return f"key {value}" if value else None


Key = AddressKey | HeaderKey | KeyFunction
"""How a request becomes a key."""


def by_address(
    trusted_proxies: TrustedProxies = None,
    *,
    forwarded_header: str = "x-forwarded-for",
    ipv6_prefix: int = 64,
) -> AddressKey:
    """Count by the client's address, which is the default.

    Without `trusted_proxies` it is the peer of the connection. A number is the number of proxies in
    front: the address is the one that the farthest of them saw. With networks, such as
    `["10.0.0.0/8", "unix"]`, it is the rightmost address that is in none of them. If an entry is
    not an address, it is the peer. `forwarded_header` is the header that the proxies write,
    `"x-forwarded-for"` or `"forwarded"`; the other is never read. IPv6 addresses count by their
    network of `ipv6_prefix` bits.
    """
    return AddressKey(trusted_proxies, forwarded_header=forwarded_header, ipv6_prefix=ipv6_prefix)


def by_header(header: str) -> HeaderKey:
    """Count by the value of a header, and requests without it by the client's address.

    The value should have been verified before: a client that can send a new value with each request
    is never limited.
    """
    return HeaderKey(header)


def by_api_key(header: str = "authorization") -> HeaderKey:
    """Count by API key: the token of `Authorization: Bearer ...`, or the value of another header,
    such as `by_api_key("x-api-key")`. Without one, by the client's address."""
    return HeaderKey(header, scheme="bearer" if header.lower() == "authorization" else "")


def reading(
    key: Key, reader: RequestReader, address: AddressKey, secret: bytes | None
) -> Callable[[Any], Any]:
    """A function from a request to the key to count by, or to an awaitable of it. A key of None
    skips a limit; an empty one means the client's address."""
    mac = stored_by(secret)
    if isinstance(key, AddressKey):
        if secret is None:
            return key.reading(reader)
        return lambda request: mac(key.read(reader, request))
    if isinstance(key, HeaderKey):
        return lambda request: mac(
            key.read(reader, request) or address.read(reader, request),
        )

    def finish(value: Any, request: Any) -> str | None:
        if value is None:
            return None
        if type(value) is int:
            value = str(value)
        if not isinstance(value, str):
            reject(f"a key function must return a string, an integer or None, not {shown(value)}")
        return mac(value or address.read(reader, request))

    def call(request: Any) -> Any:
        value = key(request)
        if type(value) is not str and inspect.isawaitable(value):
            return _PendingKey(value, lambda given: finish(given, request))
        return finish(value, request)

    return call


class _PendingKey:
    """A key that has to be awaited."""

    __slots__ = ("_finish", "_value")

    def __init__(self, value: Awaitable[Any], finish: Callable[[Any], str | None]) -> None:
        self._value = value
        self._finish = finish

    def __await__(self) -> Generator[Any, Any, str | None]:
        return self._finish((yield from self._value.__await__()))

    def close(self) -> None:
        """Drop it without awaiting it."""
        discard(self._value)


def discard(value: Awaitable[Any]) -> None:
    """Close awaitables that will not be awaited."""
    close = getattr(value, "close", None)
    if close is not None:
        close()


def _as_it_is(key: str) -> str:
    """The key, or its digest if no store would take it: clients choose the values of headers."""
    if len(key) <= _LONGEST and key.isascii():
        return key
    data = key.encode("utf-8", "surrogatepass")
    if len(data) <= _LONGEST and data.decode("utf-8", "ignore") == key:
        return key
    return f"sha256 {hashlib.sha256(data).hexdigest()}"


def stored_by(secret: bytes | None) -> Callable[[str], str]:
    """Keys unchanged or, with a secret, as HMACs: the store then reveals no identities, not even to
    guessing."""
    if secret is None:
        return _as_it_is

    def mac(key: str) -> str:
        return hmac.digest(secret, key.encode("utf-8", "surrogatepass"), "sha256").hex()

    return mac


def require_secret(given: str | bytes | None) -> bytes | None:
    """The secret of `hash_keys`, validated."""
    if given is None:
        return None
    secret = given.encode() if isinstance(given, str) else given
    if not isinstance(secret, bytes) or len(secret) < _SHORTEST_SECRET:
        reject(f"hash_keys must be a secret of at least {_SHORTEST_SECRET} bytes")
    return secret


def _trusted(
    given: TrustedProxies,
) -> tuple[int, list[IPv4Network | IPv6Network], bool]:
    """The number of proxies, their networks, and whether a Unix socket is one of them."""
    if given is None:
        return 0, [], False
    if isinstance(given, int):
        return require_int("trusted_proxies", given, 1, 100), [], False
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable) or not names:
        reject(
            "trusted_proxies must be a number of proxies or networks such as ['10.0.0.0/8'], not "
            f"{shown(given)}"
        )
    networks = []
    for name in names:
        if name == "unix":
            continue
        try:
            networks.append(ip_network(name))
        except ValueError as error:
            reject(
                "trusted_proxies must be networks such as '10.0.0.0/8' or '2001:db8::/32', or "
                f"'unix', not {shown(name)}: {error}"
            )
    return 0, networks, "unix" in names


def _entries(header: str) -> list[str]:
    """The addresses of `X-Forwarded-For`."""
    return [entry.strip() for entry in header.split(",")]


_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PAIR = re.compile(rf'\s*(?:([^\s"=]+)=([^\s"]*|{_QUOTED})\s*)?')


def _nodes(header: str) -> list[str]:
    """The `for` of each element of `Forwarded`. What violates RFC 7239 is no address, except for
    ports and brackets without the required quotes."""
    return [_node(_split(element, ";")) for element in _split(header, ",")]


def _node(pairs: list[str]) -> str:
    read = [_PAIR.fullmatch(pair) for pair in pairs]
    nodes = [found[2] for found in read if found and found[1] and found[1].lower() == "for"]
    if None in read or len(nodes) != 1:
        return ""
    return nodes[0].removeprefix('"').removesuffix('"')


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of quotes: a quoted value, such as the `host`, may have been
    chosen by the client. Empty if a quote does not end."""
    parts: list[str] = re.findall(
        rf'(?:^|{separator})((?:[^"{separator}]|{_QUOTED})*)', text, re.DOTALL
    )
    return parts if len(separator.join(parts)) == len(text) else []


@lru_cache(maxsize=4096)
def parsed(text: str | None) -> Address | None:
    """An address, with or without a port; None for anything else."""
    if not text or len(text) > 64:
        return None
    if text[0] == "[":
        inner, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not (rest[0] == ":" and rest[1:].isdecimal())):
            return None
        text = inner
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not port.isdecimal():
            return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


def network_of(address: Address, prefix: int = 64) -> str:
    """The key of an address: itself, or for IPv6 its network."""
    if isinstance(address, IPv4Address):
        return str(address)
    plain = IPv6Address(int(address))  # without a zone
    return str(plain) if prefix == 128 else str(IPv6Network((int(plain), prefix), strict=False))
