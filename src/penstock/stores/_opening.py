"""`open_store`: opens the store of a URL, so that the backend can be a line of configuration.

A backend is found by its URL scheme. Its module is named here as text and imported when it is
used; if its driver is missing, the error names the extra to install.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NoReturn

from ..core._clock import Clock
from ..core._store import Store, require_store
from ..core._validation import reject

__all__ = ["SCHEMES", "open_for_limiter", "open_on_clock", "open_store"]


_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"

_POSTGRES = ".postgres:PostgresStore.from_url"
_REDIS = ".redis:RedisStore.from_url"
_DURABLE_OBJECT = ".durable_object:DurableObjectStore.from_url"
_DENO_KV = ".deno_kv:DenoKvStore.from_url"

SCHEMES: dict[str, str] = {
    "memory": ".memory:MemoryStore.from_url",
    "sqlite": ".sqlite:SqliteStore.from_url",
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "unix": _REDIS,
    "dynamodb": ".dynamodb:DynamoDBStore.from_url",
    "d1": ".d1:D1Store.from_url",
    "durable-object+https": _DURABLE_OBJECT,
    "durable-object+http": _DURABLE_OBJECT,
    "workers-kv": ".workers_kv:WorkersKVStore.from_url",
    "deno-kv+https": _DENO_KV,
    "deno-kv+http": _DENO_KV,
}
"""Scheme to loader: a module below this package and, after the colon, what to call with the URL."""

_HAVE_CLOCKS = (_REDIS, _POSTGRES)
"""The stores that take `use_server_time`."""


def open_store(url: str, **options: Any) -> Store:
    """Open the store of a URL, such as `memory://` or `redis://host:6379/0`.

    `options` are keyword arguments of the store: `open_store("redis://...", timeout_ms=50)`.
    """
    if not isinstance(url, str):
        kind = type(url).__name__
        reject(f"a store's URL must be a string such as 'redis://localhost:6379', not a {kind}")
    scheme, separator, _ = url.partition("://")
    loader = SCHEMES.get(scheme.lower()) if separator else None
    if loader is None:
        _refuse(scheme, bool(separator))
    module, _, path = loader.partition(":")
    target: Any = import_module(module, __package__)
    for name in path.split("."):
        target = getattr(target, name)
    store = target(url, **options)
    assert isinstance(store, Store)
    return store


def open_on_clock(url: str, clock: Clock, **options: Any) -> Store:
    """As `open_store`, for a caller whose clock decides, whatever clock the store has. A table in
    this process is swept by that clock."""
    scheme = url.partition("://")[0].lower() if isinstance(url, str) else ""
    if scheme == "memory":
        options["clock"] = clock
    elif SCHEMES.get(scheme) in _HAVE_CLOCKS:
        options["use_server_time"] = False
    return open_store(url, **options)


def open_for_limiter(store: Store | str | None, clock: Clock | None) -> tuple[Store, bool]:
    """The store for a limiter that was given a store, a URL or nothing; and whether the limiter
    has to close it."""
    if store is None:
        from .memory import MemoryStore

        return MemoryStore(clock=clock), True
    if not isinstance(store, str):
        return require_store(store), False
    # A table in this process is swept by the limiter's clock; other stores do not need it.
    is_memory = store.partition("://")[0].lower() == "memory"
    return (open_store(store, clock=clock) if is_memory else open_store(store)), True


def _refuse(scheme: str, is_url: bool) -> NoReturn:
    """Reject a URL. Only its scheme is shown: there may be a password in the rest."""
    from difflib import get_close_matches

    if not is_url:
        word = scheme.partition(":")[0].lower()
        hint = f"did you mean '{word}://...'?" if word in SCHEMES else _USE
        reject(f"a store's URL has a scheme and ://, such as redis://localhost:6379; {hint}")
    near = get_close_matches(scheme.lower(), SCHEMES, n=1)
    hint = f"did you mean '{near[0]}://'?" if near else _USE
    named = f" {scheme!r}" if re.fullmatch(_SCHEME, scheme) else ""
    reject(f"no store is known for the URL scheme{named}; {hint}")


_USE = f"use one of {', '.join(f'{name}://' for name in sorted(SCHEMES))}"
