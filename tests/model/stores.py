"""The stores that scenarios run on: both paths in process, real servers, and stores that compare
and swap, or that charge several keys one after the other."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable

from penstock import MemoryStore, Store
from penstock.core import native
from tests.conformance.broken_stores import DictStore
from tests.stores.cas.backend import DictCasStore
from tests.stores.postgres.live import open_empty as open_postgres
from tests.stores.redis.live import open_empty as open_redis
from tests.stores.sqlite.fresh import FreshSqliteStore
from tests.support.helpers import make_store


def _in_process(path: str) -> Callable[[], Store]:
    return lambda: make_store(path)


class CasStore(DictCasStore):
    """Compare and swap on records in a dict."""


STORES: dict[str, Callable[[], Store]] = {
    "memory": MemoryStore,
    "interpreted": _in_process("interpreted"),
    "sqlite": FreshSqliteStore,
    "cas": CasStore,
    "dict": DictStore,
    "valkey": lambda: open_redis("valkey"),
    "postgres": open_postgres,
}
LOCAL = (
    ("memory", "interpreted", "cas", "dict") if native is not None else ("memory", "cas", "dict")
)
SERVED = ("sqlite", "valkey", "postgres")

# They charge several keys one after the other, and refund where a later limit denies.
IN_ORDER = ("dict",)
# Opening one takes longer than a scenario, so scenarios share one and have prefixes of their own.
_KEPT = ("sqlite", "valkey", "postgres")


@functools.cache
def _kept(name: str) -> Store:
    return STORES[name]()


def open_store(name: str) -> Store:
    """A store for one scenario. Its keys begin with a prefix of its own (`new_prefix`)."""
    return _kept(name) if name in _KEPT else STORES[name]()


def let_go(name: str, store: Store) -> None:
    """A scenario has ended that had this store."""
    if name not in _KEPT:
        store.close()


def new_prefix() -> str:
    return f"m{uuid.uuid4().hex[:10]}"
