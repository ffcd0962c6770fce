"""What a Redis URL says.

    redis://user:password@host:6379/0        rediss:// for TLS
    unix:///run/redis.sock?db=0
    redis+cluster://host1:6379,host2:6379    rediss+cluster:// for TLS
    redis+sentinel://host1:26379,host2:26379/service/0    rediss+sentinel:// for TLS

User and password are those of the data servers; sentinels that ask for their own take
`?sentinel_username=` and `?sentinel_password=`. `?timeout_ms=` and `?use_server_time=` are the
store's, for programs that know it only by its URL. Other parameters are the driver's, such as
`?ssl_ca_certs=` and `?client_name=`; those that it does not know are refused.

A URL holds a password, and one that was not escaped may end up in any of its parts: so no message
repeats the URL, nor its host or path.

From a client or a URL to new connections. The only file that knows redis-py and valkey-py.

The store opens connections of its own, with the driver's connection class and the client's
address, credentials and TLS settings. The driver connects, authenticates and selects the
database; after that the store reads and writes the socket itself. So a client's timeouts and
retry policies do not matter here: redis-py resends a command whose reply it missed, which would
charge a request twice, and none of its deadlines covers a whole call. The client that was passed
in, and its pool, are never touched.

Beside the public constructor and `connect()` of a connection, two attributes are used: `_sock` of
a blocking one and `_writer` of an asynchronous one. Neither is public: the tests of the clients
are what would notice a release that renames them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from ...core import _errors as extras
from ...core._errors import ConfigInvalidError
from ...core._validation import reject, require_choice
from .._urls import split_url
from ._requests import Address
from ._topology import Cluster, Fixed, Sentinels, Topology

__all__ = [
    "OPTIONS",
    "SENTINEL_OPTIONS",
    "ConnectionFactory",
    "Deployment",
    "ParsedUrl",
    "deployment_of_client",
    "deployment_of_url",
    "parse",
    "require_module",
    "split_options",
]


OPTIONS = ("timeout_ms", "use_server_time")

SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}


@dataclass(slots=True)
class ParsedUrl:
    """`url` and `parameters` are for the driver; the rest is for the store."""

    url: str
    hosts: list[tuple[str, int]]
    parameters: list[str]
    cluster: bool = False
    service: str = ""
    sentinel_options: dict[str, Any] = field(default_factory=dict)


def split_options(url: str) -> tuple[str, dict[str, Any]]:
    """The URL without the store's own parameters, and those."""
    parts = _split(url)
    query = _query(parts)
    options: dict[str, Any] = {}
    if "timeout_ms" in query:
        text = query.pop("timeout_ms")
        if not text.isdecimal():
            reject(f"?timeout_ms= must be a whole number of milliseconds, not {text!r}")
        options["timeout_ms"] = int(text)
    if "use_server_time" in query:
        text = query.pop("use_server_time").lower()
        options["use_server_time"] = (
            require_choice("?use_server_time=", text, ("true", "false")) == "true"
        )
    if not options:
        return url, options
    return parts._replace(query=urlencode(query)).geturl(), options


def parse(url: str) -> ParsedUrl:
    scheme, _, kind = url.partition("://")[0].lower().partition("+")
    parts = _split(url)
    query = _query(parts)
    if scheme == "unix" and not kind:
        return ParsedUrl(url, [(parts.path, 0)], list(query))
    if scheme not in ("redis", "rediss") or kind not in ("", "cluster", "sentinel"):
        reject("not a Redis URL: it starts with redis://, rediss://, redis+cluster://, ...")
    credentials, at, hosts_text = parts.netloc.rpartition("@")
    hosts = [_host(text, 26379 if kind == "sentinel" else 6379) for text in hosts_text.split(",")]
    if len(hosts) > 1 and not kind:
        reject(f"{scheme}:// names one server; for several use {scheme}+cluster:// or +sentinel://")
    path = [unquote(word) for word in parts.path.split("/") if word]
    service = ""
    if kind == "sentinel":
        if not path:
            reject(f"a sentinel URL names its service: {scheme}+sentinel://host:26379/service/0")
        service = path.pop(0)
    db = path[0] if path else "0"
    if len(path) > 1 or not db.isdecimal() or (kind == "cluster" and db != "0"):
        reject(
            "the path of a Redis URL must be a database number (a cluster has only 0); in a "
            "password write / as %2F"
        )
    ours = SENTINEL_OPTIONS if kind == "sentinel" else {}
    sentinel = {ours[name]: query.pop(name) for name in ours if name in query}
    host = hosts_text if not kind else "localhost"
    rest = f"?{urlencode(query)}" if query else ""
    plain = f"{scheme}://{credentials}{at}{host}/{db}{rest}"
    return ParsedUrl(plain, hosts, list(query), kind == "cluster", service, sentinel)


def _split(url: str) -> SplitResult:
    # Rejected outside of the handler: the text of a ValueError may hold the password, and would
    # be in the traceback.
    parts = None
    with suppress(ValueError):
        parts = split_url(url)
    if parts is None:
        reject(
            "not a Redis URL: redis://user:password@host:6379/0, an IPv6 host in [brackets]; in a "
            "password write [ as %5B and ] as %5D"
        )
    return parts


def _query(parts: SplitResult) -> dict[str, str]:
    return dict(parse_qsl(parts.query, keep_blank_values=True))


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = None
    with suppress(ValueError):
        parts = urlsplit(f"//{text}")
        if "[" not in text[1:]:
            found = parts.hostname or "localhost", parts.port or default_port
    if found is None:
        reject(
            "a host of this Redis URL is not a name and a port number; in a password write / as "
            "%2F, ? as %3F and # as %23"
        )
    return found


_KEPT = frozenset(
    {
        "client_name",
        "credential_provider",
        "db",
        "password",
        "path",
        "socket_keepalive",
        "socket_keepalive_options",
        "socket_type",
        "username",
    }
)
_DRIVERS = ("redis", "valkey")


def require_module(name: str) -> Any:
    """A driver's module, or an error that says how to get it."""
    return extras.require_module("a Redis store", name)


class ConnectionFactory:
    """Makes the connections of a store, sync or async."""

    def __init__(
        self,
        connection_class: type[Any],
        settings: Mapping[str, Any],
        sentinel: ConnectionFactory | None = None,
    ) -> None:
        self._class = connection_class
        self._settings = {
            name: value
            for name, value in settings.items()
            if name in _KEPT or name.startswith("ssl_")
        }
        self._quiet = _quiet(connection_class)
        self._sentinel = sentinel

    def make(self, where: Address, timeout_s: float) -> Any:
        """A connection that is not open yet."""
        if where.sentinel and self._sentinel is not None:
            return self._sentinel.make(where._replace(sentinel=False), timeout_s)
        parsed = {} if "path" in self._settings else {"host": where.host, "port": where.port}
        return self._class(
            **self._settings,
            **parsed,
            **self._quiet,
            # RESP2: no push messages.
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )


def _quiet(connection_class: type[Any]) -> dict[str, Any]:
    """Options that spare the round trips in which the driver announces its name, if it has them."""
    accepted = _accepted(connection_class)
    if "driver_info" in accepted:
        return {"driver_info": None}
    return {name: None for name in ("lib_name", "lib_version") if name in accepted}


def _accepted(connection_class: type[Any]) -> set[str]:
    """The parameters of a connection, those of its bases included."""
    names = {
        name
        for base in connection_class.__mro__
        for name in inspect.signature(vars(base).get("__init__", object)).parameters
    }
    return names - {"self", "args", "kwargs"}


@dataclass(slots=True)
class Deployment:
    """A topology, and factories of connections for sync and for async calls, as far as the client
    supports them."""

    topology: Topology
    sync_factory: ConnectionFactory | None
    async_factory: ConnectionFactory | None


def deployment_of_url(url: str) -> Deployment:
    """For sync and async calls."""
    parsed = parse(url)
    require_module("redis")
    return Deployment(
        _topology_of(parsed),
        _factory_of_url(parsed, require_module("redis")),
        _factory_of_url(parsed, require_module("redis.asyncio")),
    )


def _factory_of_url(parsed: ParsedUrl, driver: Any) -> ConnectionFactory:
    try:
        pool = driver.Redis.from_url(parsed.url).connection_pool
        _require_known(parsed, pool.connection_class)
        settings = pool.connection_kwargs
        # The sentinels use TLS if the servers do.
        tls = {name: value for name, value in settings.items() if name.startswith("ssl_")}
        sentinel_factory = ConnectionFactory(
            pool.connection_class, {**tls, **parsed.sentinel_options}
        )
        factory = ConnectionFactory(
            pool.connection_class, settings, sentinel_factory if parsed.service else None
        )
        # An invalid value is noticed here, and not first in an outage.
        factory.make(Address("localhost", 0), 1.0)
    except (ValueError, TypeError, driver.RedisError) as error:
        if isinstance(error, ConfigInvalidError):
            raise
        raise ConfigInvalidError(f"this Redis URL makes no sense to redis-py: {error}") from error
    return factory


def _require_known(parsed: ParsedUrl, connection_class: type[Any]) -> None:
    """Reject an unknown parameter, which would otherwise be ignored."""
    accepted = _accepted(connection_class)
    for name in parsed.parameters:
        if name not in accepted:
            ours = [*OPTIONS, *(SENTINEL_OPTIONS if parsed.service else ())]
            near = get_close_matches(name, [*ours, *sorted(accepted)], 1)
            hint = f"did you mean {near[0]}?" if near else f"the store's own are {', '.join(ours)}"
            # Text that is not a name may be the end of a password that contains a question mark.
            shown = repr(name) if name.isidentifier() else "in the URL"
            reject(
                f"neither the store nor a {connection_class.__name__} of redis-py has the "
                f"parameter {shown}; {hint}"
            )


def _topology_of(parsed: ParsedUrl) -> Topology:
    if parsed.service:
        return Sentinels([Address(h, p, True) for h, p in parsed.hosts], parsed.service)
    seeds = [Address(host, port) for host, port in parsed.hosts]
    return Cluster(seeds) if parsed.cluster else Fixed(seeds[0])


def deployment_of_client(client: Any) -> Deployment:
    """For sync or async calls, as the client is."""
    is_async = inspect.iscoroutinefunction(getattr(client, "execute_command", None))
    if hasattr(client, "nodes_manager"):
        topology, factory = _of_cluster(client, is_async)
    elif hasattr(getattr(client, "connection_pool", None), "connection_kwargs"):
        pool = client.connection_pool
        if hasattr(pool, "sentinel_manager"):
            topology, factory = _of_sentinel(pool)
        else:
            factory = ConnectionFactory(pool.connection_class, pool.connection_kwargs)
            topology = Fixed(_address(pool.connection_kwargs))
    else:
        reject(
            "client must be a redis-py, valkey-py or upstash-redis client, sync or asyncio, not a "
            f"{type(client).__name__}; for a URL use RedisStore.from_url"
        )
    return Deployment(topology, None, factory) if is_async else Deployment(topology, factory, None)


def _address(settings: Mapping[str, Any]) -> Address:
    if "path" in settings:
        return Address(settings["path"], 0)
    return Address(settings.get("host", "localhost"), int(settings.get("port", 6379)))


def _of_sentinel(pool: Any) -> tuple[Topology, ConnectionFactory]:
    if not pool.is_master:
        reject("a replica cannot count: use sentinel.master_for(...), not slave_for(...)")
    manager = pool.sentinel_manager
    settings = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    if not settings:
        reject("this Sentinel client knows no sentinels")
    places = [_address(each)._replace(sentinel=True) for each in settings]
    sentinel_factory = ConnectionFactory(
        manager.sentinels[0].connection_pool.connection_class, settings[0]
    )
    plain = _plain_class(pool.connection_class)
    return Sentinels(places, pool.service_name), ConnectionFactory(
        plain, pool.connection_kwargs, sentinel_factory
    )


def _plain_class(connection_class: type[Any]) -> type[Any]:
    """The plain connection class below a sentinel-managed one, which connects to a given
    address."""
    return next(
        base
        for base in connection_class.__mro__
        if base.__name__ in ("SSLConnection", "Connection")
    )


def _of_cluster(client: Any, is_async: bool) -> tuple[Topology, ConnectionFactory]:
    nodes = client.nodes_manager
    settings = client.connection_kwargs if is_async else nodes.connection_kwargs
    connection_class = settings.get("connection_class")
    if connection_class is None:
        root = next(
            base.__module__.partition(".")[0]
            for base in type(client).__mro__
            if base.__module__.partition(".")[0] in _DRIVERS
        )
        module = require_module(f"{root}.asyncio.connection" if is_async else f"{root}.connection")
        connection_class = module.SSLConnection if settings.get("ssl") else module.Connection
    seeds = [Address(node.host, int(node.port)) for node in nodes.startup_nodes.values()]
    remap = getattr(nodes, "address_remap", None)
    return Cluster(seeds, remap), ConnectionFactory(connection_class, settings)
