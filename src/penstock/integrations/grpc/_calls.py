"""Calls in servers and clients: their limits, and what keys are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import unquote

from ...core._validation import reject, shown
from .. import _who

__all__ = ["READER", "CallReader", "GrpcCall", "MethodLimits", "by_peer"]


class GrpcCall(NamedTuple):
    """A call, for functions that return keys: the `method`, such as `/package.Service/Method`, the
    `peer` as gRPC reports it (empty in a client), and the `metadata` by names in lower case; values
    of one name are joined by commas."""

    method: str
    peer: str
    metadata: Mapping[str, Any]


class CallReader:
    """Reads a call as if it were a request of HTTP."""

    def peer(self, call: GrpcCall) -> str | None:
        kind, _, rest = call.peer.partition(":")
        return unquote(rest) if kind in ("ipv4", "ipv6") else None

    def header(self, call: GrpcCall, name: str) -> str | None:
        value = call.metadata.get(name)
        return value if isinstance(value, str) else None

    def method(self, call: GrpcCall) -> str:
        return "POST"

    def path(self, call: GrpcCall) -> str:
        return call.method

    def route(self, call: GrpcCall) -> str:
        return call.method


READER = CallReader()


def by_peer(call: GrpcCall) -> str:
    """The default key: the address of the peer, without its port; for IPv6 its /64. Behind a proxy
    that is the proxy's address: there, use `by_address` with `trusted_proxies`."""
    address = _who.parsed(READER.peer(call))
    return call.peer or "unknown" if address is None else _who.network_of(address)


class MethodLimits:
    """The limit of each method: that of the first matching pattern, or else that of all other
    methods. `make` makes it, from the declaration and the pattern."""

    def __init__(self, limit: Any, methods: Any, make: Callable[[Any, str], Any]) -> None:
        if methods is not None and not isinstance(methods, Mapping):
            reject(
                "methods must map methods to limits, such as {'/shop.Orders/Place': '5/second'}, "
                f"not {shown(methods)}"
            )
        if limit is None and not methods:
            reject("there is nothing to limit: give a limit for all calls, or methods")
        self._rules = []
        for pattern, rate in (methods or {}).items():
            if not isinstance(pattern, str) or not fnmatchcase(pattern, "/*/*"):
                reject(
                    "a method is written as '/package.Service/Method', or with '*' for several, "
                    f"not {shown(pattern)}"
                )
            self._rules.append((pattern, None if rate is None else make(rate, pattern)))
        self._others = None if limit is None else make(limit, "")

    def of(self, method: str) -> Any:
        """The limit of a method; None: it is exempt."""
        for pattern, made in self._rules:
            if fnmatchcase(method, pattern):
                return made
        return self._others
