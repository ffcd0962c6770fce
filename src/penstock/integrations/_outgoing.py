"""Outgoing requests: the limits of each, and the limits that its response reports.

Independent of HTTP clients: each of them has a module beside this one, which passes the method, the
URL and the headers of a request before it is sent, and the status and the headers of its response.

A request has the limits of the first route that matches it, or else those for every host. Each
route counts separately; without a route, each host does. Nothing is retried here: a refusal becomes
a pause, and the caller decides what to do with the refused request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict
from urllib.parse import urlsplit

from .._arguments import require_plain
from .._limits import Limit
from ..core._clock import Clock
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import reject, require_key, require_options, shown
from ._pacing import EnteredCall, PacedCalls, Pacer

__all__ = ["Outgoing", "OutgoingOptions", "OutgoingRequest", "Rate"]

Rate = str | Strategy | Mapping[str, Strategy | str | Limit]
"""A rate, a strategy, or several by name."""


class OutgoingRequest(NamedTuple):
    """A request of any HTTP client, for functions that return keys: its `method`, in capitals, its
    `host`, with the port if the URL has one, its `path` and its `headers`."""

    method: str
    host: str
    path: str
    headers: Mapping[str, str]

    @classmethod
    def of(cls, method: str, url: str, headers: Mapping[str, str] | None) -> OutgoingRequest:
        """From the parts that every client has."""
        parts = urlsplit(url)
        host = (parts.netloc.rpartition("@")[2]).lower()
        return cls(method.upper(), host, parts.path or "/", {} if headers is None else headers)


class OutgoingOptions(TypedDict, total=False):
    """Options for limits of outgoing requests.

    The limit itself applies to each host separately: a rate such as `"10/second"`, a strategy, or a
    mapping of several by name. With None, only the hosts that `routes` names are limited.

    `routes` maps places to such limits: `"api.example.com"`, `"*.example.com"`,
    `"api.example.com/users/{id}"`, `"POST api.example.com/orders"`. The first match applies, and
    counts all requests to that place together. `key` is a function of the `OutgoingRequest`, for
    counts that are separate by account, for instance.

    A request waits as long as necessary. With a `timeout` in seconds it raises
    `rate_limit_exceeded` as soon as it is known that the wait would be longer; 0 never waits. With
    `honour`, the default, the limits in responses are obeyed: a refusal with `Retry-After`, or
    nothing left, pauses; if less is left than was counted, the difference is taken. A pause is
    never longer than `max_pause_ms`, an hour by default.

    `store`, `clock` and `max_waiters` are those of `rate_limit`, `prefix` is `"outgoing"`. With a
    shared store all processes wait in one order, and a pause holds for all of them.
    """

    routes: Mapping[str, Rate] | None
    key: Callable[[OutgoingRequest], str] | None
    timeout: float | None
    honour: bool
    max_pause_ms: int
    store: Store | str | None
    prefix: str
    clock: Clock | None
    max_waiters: int | None


class Outgoing:
    """The limits of an HTTP client, by `OutgoingOptions`."""

    def __init__(
        self,
        limit: Rate | None,
        *,
        routes: Mapping[str, Rate] | None = None,
        key: Callable[[OutgoingRequest], str] | None = None,
        prefix: str = "outgoing",
        **options: Any,
    ) -> None:
        require_options(options, list(OutgoingOptions.__annotations__))
        require_plain("key", key, "an OutgoingRequest")
        if limit is None and not routes:
            reject("there is nothing to limit: give a limit for every host, or routes")
        self._key = key
        places = {_pattern(place): (place, rate) for place, rate in _items(routes)}
        self._calls = PacedCalls(prefix=prefix, **options)
        try:
            self._routes = [
                (fits, place, self._pacer(rate, place)) for fits, (place, rate) in places.items()
            ]
            self._hosts = None if limit is None else self._pacer(limit, "")
        except BaseException:
            self.close()
            raise

    def _pacer(self, rate: Rate, place: str) -> Pacer:
        made = self._calls.pacer(rate, place)
        _refuse_slots(made)
        return made

    def enter(self, method: str, url: str, headers: Mapping[str, str] | None) -> EnteredCall | None:
        """Wait until the request may be sent; None: it has no limits."""
        return self._calls.enter(self._place(OutgoingRequest.of(method, url, headers)))

    async def aenter(
        self, method: str, url: str, headers: Mapping[str, str] | None
    ) -> EnteredCall | None:
        """The awaitable twin of `enter`."""
        return await self._calls.aenter(self._place(OutgoingRequest.of(method, url, headers)))

    def observe(self, entered: EnteredCall | None, status: int, headers: Mapping[str, Any]) -> None:
        """Obey the limits that the response reports."""
        self._calls.observe(entered, status, headers)

    async def aobserve(
        self, entered: EnteredCall | None, status: int, headers: Mapping[str, Any]
    ) -> None:
        """The awaitable twin of `observe`."""
        await self._calls.aobserve(entered, status, headers)

    def close(self) -> None:
        """Close the store that was opened here."""
        self._calls.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        await self._calls.aclose()

    def _place(self, request: OutgoingRequest) -> tuple[Pacer, str] | None:
        further = None
        if self._key is not None:
            further = require_key(self._key(request))
        for fits, place, pacer in self._routes:
            if fits.fullmatch(f"{request.method} {request.host}{request.path}"):
                return pacer, further or place
        if self._hosts is None:
            return None
        return self._hosts, f"{request.host}|{further}" if further else request.host


def _items(routes: Any) -> list[tuple[str, Rate]]:
    if routes is None:
        return []
    if not isinstance(routes, Mapping):
        reject(
            "routes must map places to limits, such as {'api.example.com/search': '1/second'}, "
            f"not {shown(routes)}"
        )
    return list(routes.items())


_PLACE = re.compile(
    r"(?:(?P<method>[A-Za-z]+) )?"
    r"(?P<host>(?:\[[0-9a-fA-F:.]+\]|[^\s/{}?#:]+)(?::\d+)?)"
    r"(?P<path>/[^\s?#]*)?"
)


def _pattern(place: Any) -> re.Pattern[str]:
    """The pattern of a place: a host, with `*` for any subdomain, and with any port if it has none;
    a path matches everything below it; `{...}` matches one segment."""
    found = _PLACE.fullmatch(place) if isinstance(place, str) else None
    if found is None:
        reject(
            "a route is a host, with a path and before it a method if need be, such as "
            f"'GET api.example.com/users/{{id}}', not {shown(place)}"
        )
    method = (found["method"] or "").upper() or "[A-Z]+"
    host = re.escape(found["host"].lower()).replace(r"\*", r"[^/:]+")
    port = "" if re.search(r":\d+$", found["host"]) else r"(?::\d+)?"
    segments = (found["path"] or "").rstrip("/").split("/")
    path = "/".join(
        "[^/]+" if re.fullmatch(r"\{\w*\}", segment) else re.escape(segment) for segment in segments
    )
    return re.compile(rf"{method} {host}{port}{path}(?:/.*)?", re.DOTALL)


def _refuse_slots(pacer: Pacer) -> None:
    for name, limit in pacer.limits.limits.items():
        if limit.strategy.is_held:
            reject(
                f"{name!r} counts requests in flight, and a client does not tell when the body of "
                "an answer has been read; use limited(slots(...)) around the call"
            )
