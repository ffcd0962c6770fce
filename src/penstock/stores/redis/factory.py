"""From a client or a URL to new connections. The only file that knows redis-py and valkey-py.

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
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ...core import extras
from ...core.errors import ConfigInvalidError
from ...core.validation import reject
from .requests import Address
from .topology import Cluster, Fixed, Sentinels, Topology
from .urls import OPTIONS, SENTINEL_OPTIONS, ParsedUrl, parse

__all__ = [
    "ConnectionFactory",
    "Deployment",
    "deployment_of_client",
    "deployment_of_url",
    "require_module",
]

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
            # RESP2: no messages that nobody asked for.
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )


def _quiet(connection_class: type[Any]) -> dict[str, Any]:
    """No round trips to announce the library's name, where it can be told so."""
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
    """A topology, and what makes connections for sync and for async calls, if the client can."""

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
        # The sentinels speak TLS, or not, as the servers do.
        tls = {name: value for name, value in settings.items() if name.startswith("ssl_")}
        sentinel_factory = ConnectionFactory(
            pool.connection_class, {**tls, **parsed.sentinel_options}
        )
        factory = ConnectionFactory(
            pool.connection_class, settings, sentinel_factory if parsed.service else None
        )
        # A value that makes no sense is noticed here, and not in an outage.
        factory.make(Address("localhost", 0), 1.0)
    except (ValueError, TypeError, driver.RedisError) as error:
        if isinstance(error, ConfigInvalidError):
            raise
        raise ConfigInvalidError(f"this Redis URL makes no sense to redis-py: {error}") from error
    return factory


def _require_known(parsed: ParsedUrl, connection_class: type[Any]) -> None:
    """A parameter that nobody knows is a mistake, and would be ignored without a word."""
    accepted = _accepted(connection_class)
    for name in parsed.parameters:
        if name not in accepted:
            ours = [*OPTIONS, *(SENTINEL_OPTIONS if parsed.service else ())]
            near = get_close_matches(name, [*ours, *sorted(accepted)], 1)
            hint = f"did you mean {near[0]}?" if near else f"the store's own are {', '.join(ours)}"
            # What is no name at all may be the end of a password with a question mark in it.
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
    """The class below a sentinel-managed one: it connects where it is told to."""
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
