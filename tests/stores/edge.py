"""Real servers for the stores that compare and swap: each started once per run, at first use.

`open_empty(name)` is a patient store that holds nothing yet; `url_of(name)` is the URL of such a
store, for processes of their own. Tokens are where the URLs say: in the environment.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from penstock.stores import open_store
from penstock.stores.cas import CasStore
from tests.servers import Deno, Dynalite, DynamoDBLocal, Miniflare, require

PATIENT_MS = 20_000
TOKEN = "s3cret-t0ken-of-the-tests"
KV_NAMESPACES = 128
STORES = Path(penstock.__file__).parent / "stores"

EXACT = ("dynamodb", "d1", "durable-object", "deno-kv")
ALL = (*EXACT, "workers-kv")
# Those that write several keys at once, and those that do not and are exact for each.
ATOMIC = ("dynamodb-local", "d1", "deno-kv")
IN_ORDER = ("dynamodb", "durable-object")
HTTP = ("d1", "durable-object", "deno-kv", "workers-kv")

# Not the default of the record servers, PENSTOCK_TOKEN: to a service that a later test starts, that
# would be the token to ask its clients for.
os.environ.update(
    AWS_ACCESS_KEY_ID="test",
    AWS_SECRET_ACCESS_KEY="test",
    CLOUDFLARE_API_TOKEN=TOKEN,
    RECORD_SERVER_TOKEN=TOKEN,
)


def _find_models_once() -> None:
    """Every session of botocore looks for its models and reads them again: most of what it costs to
    open a store."""
    with contextlib.suppress(ImportError):
        from botocore.loaders import JSONFileLoader, Loader  # type: ignore[import-untyped]

        read, find = functools.cache(JSONFileLoader().load_file), Loader.list_available_services
        found: dict[Any, Any] = {}

        def look(self: Any, kind: str) -> Any:
            place = (kind, *self.search_paths)
            if place not in found:
                found[place] = find(self, kind)
            return found[place]

        JSONFileLoader.load_file = lambda _self, path: read(path)
        Loader.list_available_services = look


_find_models_once()
_numbers = itertools.count(int.from_bytes(os.urandom(4), "big"))
_namespaces = itertools.count()


class DenoKv(Deno):
    """The program that ships with the store, on a file that survives a restart."""

    def __init__(self) -> None:
        flags = ("--unstable-kv", "--allow-net", "--allow-env", "--allow-read", "--allow-write")
        script = STORES / "deno_kv" / "server.js"
        super().__init__(script, permissions=flags, env={"PENSTOCK_TOKEN": TOKEN})

    def popen_options(self) -> dict[str, Any]:
        options = super().popen_options()
        options["env"]["PENSTOCK_KV_PATH"] = str(self.data_dir / "kv.sqlite")
        return options


def cloudflare() -> Miniflare:
    """D1 and Workers KV behind their REST API, and the Worker that ships with the store."""
    return Miniflare(
        STORES / "durable_object" / "worker.js",
        d1={"DB": "limits"},
        kv={f"KV{number}": f"states{number}" for number in range(KV_NAMESPACES)},
        durable_objects={"RECORDS": "Record"},
        variables={"PENSTOCK_TOKEN": TOKEN},
        token=TOKEN,
    )


def make_server(name: str) -> Any:
    makers: dict[str, Callable[[], Any]] = {
        "dynamodb": Dynalite,
        "dynamodb-local": DynamoDBLocal,
        "deno-kv": DenoKv,
    }
    return makers.get(name, cloudflare)()


def new_server(name: str) -> Any:
    """A server of one's own, to be hurt."""
    names = {"dynamodb": "dynalite", "dynamodb-local": "dynamodb-local", "deno-kv": "deno"}
    require(names.get(name, "miniflare"))
    return make_server(name)


@functools.cache
def _shared(kind: str) -> Any:
    return new_server(kind).__enter__()


def running(name: str) -> Any:
    """The server that all tests share."""
    own = ("dynamodb", "dynamodb-local", "deno-kv")
    return _shared(name if name in own else "cloudflare")


def url_of(name: str, port: int | None = None, timeout_ms: int = PATIENT_MS, **more: Any) -> str:
    """A URL under which nothing is kept yet; `port` leads through a proxy, or to another server."""
    port = running(name).port if port is None else port
    number, base, query = next(_numbers), f"http://127.0.0.1:{port}", f"timeout_ms={timeout_ms}"
    query += "".join(f"&{key}={value}" for key, value in more.items())
    if name in ("dynamodb", "dynamodb-local"):
        # dynalite has no transactions.
        query += "&transactions=off" if name == "dynamodb" else ""
        return f"dynamodb://limits-{number}?region=us-east-1&endpoint={base}&{query}"
    if name == "d1":
        return f"d1://test-account/limits?table=t{number}&base_url={base}/client/v4&{query}"
    if name == "workers-kv":
        namespace = f"states{next(_namespaces) % KV_NAMESPACES}"
        return f"workers-kv://test-account/{namespace}?base_url={base}/client/v4&{query}"
    return f"{name}+{base}?namespace=n{number}&token_env=RECORD_SERVER_TOKEN&{query}"


def opened(url: str) -> CasStore:
    """The store, its table created."""
    store = open_store(url)
    assert isinstance(store, CasStore)
    if hasattr(store, "init"):
        store.init()
    return store


def open_empty(name: str) -> CasStore:
    return opened(url_of(name))
