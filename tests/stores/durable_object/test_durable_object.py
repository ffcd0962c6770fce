"""What only DurableObjectStore has: the Worker that ships with it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from penstock import StoreUnavailableError, gcra
from penstock.core._transform import checking
from penstock.stores import open_store
from tests.servers.node import http_call
from tests.stores import edge

NOW = 1_700_000_000_000
CHECK = checking(gcra(10, 3_600_000))

each_server = pytest.mark.parametrize("name", ["durable-object", "deno-kv"])


def _post(name: str, body: object, token: str = edge.TOKEN) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    status, text = http_call(edge.running(name).port, "POST", "/", body=body, headers=headers)
    return status, json.loads(text)


def _ask(name: str, **operation: Any) -> Any:
    status, body = _post(name, {"namespace": "by-hand", "operations": [operation]})
    assert status == 200
    return body["answers"][0]


def test_the_two_servers_share_their_front() -> None:
    """Each has to be deployable alone, so the part in common is there twice, to the letter."""
    worker = (edge.STORES / "durable_object" / "worker.js").read_text()
    server = (edge.STORES / "deno_kv" / "server.js").read_text()
    mark = "// ---- The same in worker.js and server.js"
    assert worker.partition(mark)[2] == server.partition(mark)[2] != ""


@each_server
def test_a_server_asks_for_its_token(name: str) -> None:
    """No token, half a token and a longer one are all refused."""
    body = {"namespace": "n", "operations": [{"op": "read", "key": "k"}]}
    for token in ("", "wrong", edge.TOKEN[:-1], edge.TOKEN + "x"):
        status, said = _post(name, body, token)
        assert (status, said) == (401, {"error": "missing or wrong bearer token"})
    assert _post(name, body) == (200, {"answers": [{"found": None}]})


@each_server
def test_a_server_compares_and_swaps(name: str) -> None:
    """What another has changed is refused, and shown."""
    key = f"k{time.monotonic_ns()}"
    write = {"op": "swap", "key": key, "expected": None, "record": "r", "keep_ms": 60_000}
    written = _ask(name, **write, version="1")
    assert written["done"] is True
    refused = _ask(name, **write, version="2")
    found = refused["found"]
    assert (refused["done"], found) == (
        False,
        {"record": "r", "version": "1", "stamp": written["stamp"]},
    )
    assert _ask(name, op="drop", key=key, expected="0" * 20)["done"] is False
    assert _ask(name, op="drop", key=key, expected=found["stamp"])["done"] is True
    assert _ask(name, op="read", key=key) == {"found": None}
    assert _ask(name, op="drop", key=key)["done"] is True


@each_server
@pytest.mark.parametrize(
    "body",
    [
        "no JSON",
        [],
        {"operations": []},
        {"namespace": "n", "operations": {}},
        {"namespace": "n", "operations": [{"op": "read", "key": "k"}] * 65},
        {"namespace": "n", "operations": [{"op": "grow", "key": "k"}]},
        {"namespace": "n", "operations": [{"op": "read", "key": ""}]},
        {"namespace": "n", "operations": [{"op": "swap", "key": "k", "version": "v"}]},
        {"namespace": "n", "operations": [None]},
    ],
    ids=repr,
)
def test_a_server_refuses_what_it_does_not_understand(name: str, body: object) -> None:
    """Before it touches anything, with the reason."""
    status, said = _post(name, body)
    assert status == 400
    assert said["error"]


@each_server
def test_namespaces_keep_programs_apart(name: str) -> None:
    """The same key in two of them is two keys."""
    stores = [edge.open_empty(name) for _ in range(2)]
    for store in stores:
        assert store.apply("k", CHECK, NOW, 1).remaining == 9
        store.close()


def test_an_object_gives_its_space_back() -> None:
    """By its alarm, not before its time is up, and again if it was written meanwhile."""
    key = f"brief{time.monotonic_ns()}"
    name = "durable-object"
    write = {"op": "swap", "key": key, "record": "r"}
    _ask(name, **write, version="1", expected=None, keep_ms=300)
    _ask(name, **write, version="2", expected="1", keep_ms=1_500)
    time.sleep(0.8)
    assert _ask(name, op="read", key=key)["found"]["version"] == "2"
    deadline = time.monotonic() + 10
    while _ask(name, op="read", key=key)["found"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _ask(name, op="read", key=key) == {"found": None}


def test_a_place_that_is_no_record_server_is_told_apart() -> None:
    """A wrong path, another program: an error that says what answered."""
    port = edge.running("d1").port
    place = f"127.0.0.1:{port}/client/v4/user/tokens/verify"
    store = open_store(f"deno-kv+http://{place}?token_env=RECORD_SERVER_TOKEN")
    with pytest.raises(StoreUnavailableError, match="malformed reply"):
        store.apply("k", CHECK, NOW, 1)
    store.close()
