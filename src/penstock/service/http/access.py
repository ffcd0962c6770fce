"""For which sites requests are served, and on behalf of which.

A page of any site can make its visitor's browser send requests here, and spend what the visitor's
machine, or the network behind it, has left. Browsers tell on whose behalf they ask, in
`Sec-Fetch-Site` and `Origin`. A site can also let its own name point to this machine, and then asks
on its own behalf (DNS rebinding); but the browser still names that site in `Host`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

__all__ = ["Hosts", "is_cross_site"]


class Hosts:
    """The names under which this service is asked: those that are given, where `*.example.com`
    stands for all names under it, and those of this machine itself."""

    def __init__(self, names: Iterable[str]) -> None:
        given = {name.lower().strip("[].") for name in names}
        self._suffixes = tuple(name[1:] for name in given if name.startswith("*."))
        self._names = given | {"localhost"}

    def accept(self, host: str) -> bool:
        """Whether the value of a `Host` header is one of them, on whatever port."""
        name = _without_port(host.lower())
        return name in self._names or name.endswith(self._suffixes) or _is_loopback(name)


def is_cross_site(headers: dict[str, str]) -> bool:
    """Whether a browser says that it sends this for a page of another site."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    scheme, _, authority = origin.lower().partition("://")
    return scheme not in ("http", "https") or authority != headers.get("host", "").lower()


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
