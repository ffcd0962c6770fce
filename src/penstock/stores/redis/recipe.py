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
from .urls import OPTIONS, SENTINEL_OPTIONS, Place, parse

__all__ = ["Plan", "Recipe", "plan_of_client", "plan_of_url", "require_module"]

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


class Recipe:
    """How connections of one colour are made."""

    def __init__(
        self,
        connection_class: type[Any],
        settings: Mapping[str, Any],
        sentinel: Recipe | None = None,
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
        place = {} if "path" in self._settings else {"host": where.host, "port": where.port}
        return self._class(
            **self._settings,
            **place,
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
class Plan:
    """A topology and a recipe per colour; None for a colour that cannot be served."""

    topology: Topology
    blocking: Recipe | None
    asynchronous: Recipe | None


def plan_of_url(url: str) -> Plan:
    """Both colours."""
    place = parse(url)
    require_module("redis")
    return Plan(
        _topology_of(place),
        _recipe_of_url(place, require_module("redis")),
        _recipe_of_url(place, require_module("redis.asyncio")),
    )


def _recipe_of_url(place: Place, driver: Any) -> Recipe:
    try:
        pool = driver.Redis.from_url(place.url).connection_pool
        _require_known(place, pool.connection_class)
        settings = pool.connection_kwargs
        # The sentinels speak TLS, or not, as the servers do.
        tls = {name: value for name, value in settings.items() if name.startswith("ssl_")}
        ask = Recipe(pool.connection_class, {**tls, **place.sentinel_options})
        recipe = Recipe(pool.connection_class, settings, ask if place.service else None)
        # A value that makes no sense is noticed here, and not in an outage.
        recipe.make(Address("localhost", 0), 1.0)
    except (ValueError, TypeError, driver.RedisError) as error:
        if isinstance(error, ConfigInvalidError):
            raise
        raise ConfigInvalidError(f"this Redis URL makes no sense to redis-py: {error}") from error
    return recipe


def _require_known(place: Place, connection_class: type[Any]) -> None:
    """A parameter that nobody knows is a mistake, and would be ignored without a word."""
    accepted = _accepted(connection_class)
    for name in place.parameters:
        if name not in accepted:
            ours = [*OPTIONS, *(SENTINEL_OPTIONS if place.service else ())]
            near = get_close_matches(name, [*ours, *sorted(accepted)], 1)
            hint = f"did you mean {near[0]}?" if near else f"the store's own are {', '.join(ours)}"
            # What is no name at all may be the end of a password with a question mark in it.
            shown = repr(name) if name.isidentifier() else "in the URL"
            reject(
                f"neither the store nor a {connection_class.__name__} of redis-py has the "
                f"parameter {shown}; {hint}"
            )


def _topology_of(place: Place) -> Topology:
    if place.service:
        return Sentinels([Address(h, p, True) for h, p in place.hosts], place.service)
    seeds = [Address(host, port) for host, port in place.hosts]
    return Cluster(seeds) if place.cluster else Fixed(seeds[0])


def plan_of_client(client: Any) -> Plan:
    """The colour of the client only."""
    is_async = inspect.iscoroutinefunction(getattr(client, "execute_command", None))
    if hasattr(client, "nodes_manager"):
        topology, recipe = _of_cluster(client, is_async)
    elif hasattr(getattr(client, "connection_pool", None), "connection_kwargs"):
        pool = client.connection_pool
        if hasattr(pool, "sentinel_manager"):
            topology, recipe = _of_sentinel(pool)
        else:
            recipe = Recipe(pool.connection_class, pool.connection_kwargs)
            topology = Fixed(_address(pool.connection_kwargs))
    else:
        reject(
            "client must be a redis-py, valkey-py or upstash-redis client, sync or asyncio, not a "
            f"{type(client).__name__}; for a URL use RedisStore.from_url"
        )
    return Plan(topology, None, recipe) if is_async else Plan(topology, recipe, None)


def _address(settings: Mapping[str, Any]) -> Address:
    if "path" in settings:
        return Address(settings["path"], 0)
    return Address(settings.get("host", "localhost"), int(settings.get("port", 6379)))


def _of_sentinel(pool: Any) -> tuple[Topology, Recipe]:
    if not pool.is_master:
        reject("a replica cannot count: use sentinel.master_for(...), not slave_for(...)")
    manager = pool.sentinel_manager
    settings = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    if not settings:
        reject("this Sentinel client knows no sentinels")
    places = [_address(each)._replace(sentinel=True) for each in settings]
    ask = Recipe(manager.sentinels[0].connection_pool.connection_class, settings[0])
    plain = _plain_class(pool.connection_class)
    return Sentinels(places, pool.service_name), Recipe(plain, pool.connection_kwargs, ask)


def _plain_class(connection_class: type[Any]) -> type[Any]:
    """The class below a sentinel-managed one: it connects where it is told to."""
    return next(
        base
        for base in connection_class.__mro__
        if base.__name__ in ("SSLConnection", "Connection")
    )


def _of_cluster(client: Any, is_async: bool) -> tuple[Topology, Recipe]:
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
    return Cluster(seeds, remap), Recipe(connection_class, settings)
