"""The servers that other tests lean on: each starts, answers, and survives what is done to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import (
    Deno,
    Dynalite,
    FaultProxy,
    Miniflare,
    MissingError,
    Postgres,
    Redis7,
    Redis8,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    RefusedError,
    ServerError,
    Valkey,
    eventually,
    missing,
    postgres,
    require,
)
from tests.servers.deno import run as deno_run
from tests.servers.keeper import wait_gone
from tests.servers.node import http_call
from tests.servers.process import REPO, Server
from tests.servers.resp import call

FLAVOURS = pytest.mark.parametrize("flavour", [Valkey, Redis8, Redis7], ids=lambda f: f.name)

WORKER = """
import { DurableObject } from "cloudflare:workers";
export class Counter extends DurableObject {
  async fetch() {
    const n = ((await this.ctx.storage.get("n")) ?? 0) + 1;
    await this.ctx.storage.put("n", n);
    return new Response(String(n));
  }
}
export default {
  async fetch(request, env) {
    if (new URL(request.url).pathname === "/kv") return new Response(await env.KV.get("shared"));
    return env.COUNTER.get(env.COUNTER.idFromName("one")).fetch(request);
  },
};
"""

DENO_COUNTER = """
const kv = await Deno.openKv(`${Deno.env.get("DATA_DIR")}/kv.sqlite`);
const hostname = Deno.env.get("HOST"), port = Number(Deno.env.get("PORT"));
Deno.serve({ hostname, port }, async (request) => {
  if (new URL(request.url).pathname === "/") return new Response(Deno.args[0]);
  const { value } = await kv.get(["n"]);
  await kv.set(["n"], (value ?? 0) + 1);
  return new Response(String((value ?? 0) + 1));
});
"""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    require("valkey")
    with Valkey() as server:
        yield server


@pytest.fixture
def proxy(valkey: Valkey) -> Iterator[FaultProxy]:
    valkey.call("FLUSHALL")
    with FaultProxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def pg() -> Iterator[Postgres]:
    require("postgres")
    with Postgres(settings={"max_connections": 20}) as server:
        yield server


@pytest.fixture(scope="module")
def dynalite() -> Iterator[Dynalite]:
    require("dynalite")
    with Dynalite() as server:
        yield server


@pytest.fixture(scope="module")
def cloudflare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Miniflare]:
    require("miniflare")
    script = tmp_path_factory.mktemp("worker") / "worker.mjs"
    script.write_text(WORKER)
    with Miniflare(
        script, d1={"DB": "limits"}, kv={"KV": "states"}, durable_objects={"COUNTER": "Counter"}
    ) as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    require("valkey")
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sentinel() -> Iterator[RedisSentinel]:
    require("valkey")
    with RedisSentinel() as sentinel:
        yield sentinel


def assert_pauses(server: Server) -> None:
    """Paused, it accepts and stays silent; resumed, it answers again."""
    server.pause()
    outcome: list[str] = []

    def ask() -> None:
        server.ping()
        outcome.append("answered")

    asker = threading.Thread(target=ask)
    asker.start()
    asker.join(0.15)
    assert outcome == []
    server.resume()
    asker.join(5)
    assert outcome == ["answered"]


@FLAVOURS
def test_redis_answers_and_pauses(flavour: type[RedisServer]) -> None:
    """Each flavour starts, answers, stops answering when paused, and goes on when resumed."""
    require(flavour.name)
    with flavour() as server:
        assert server.call("SET", "k", "v") == "OK"
        assert_pauses(server)
        assert server.call("GET", "k") == "v"


@FLAVOURS
def test_durable_redis_keeps_its_writes_over_a_kill(flavour: type[RedisServer]) -> None:
    """With durable=True a SIGKILL loses nothing, and a wiping restart loses everything."""
    require(flavour.name)
    with flavour(durable=True) as server:
        before = server.port, server.pid
        server.call("SET", "k", "v")
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            server.call("PING")
        server.restart()
        assert server.call("GET", "k") == "v"
        assert (server.port, server.pid) != before
        assert server.port == before[0]
        server.restart(wipe=True)
        assert server.call("GET", "k") is None


def test_volatile_redis_forgets_on_restart(valkey: Valkey) -> None:
    """Without durable=True a restart is a loss of all keys."""
    valkey.call("SET", "k", "v")
    valkey.restart()
    assert valkey.call("GET", "k") is None


def test_a_failed_start_shows_the_log() -> None:
    """A server that refuses its arguments fails at once, with its own words in the error."""
    require("valkey")
    server = Valkey(args=["--no-such-option", "1"])
    with pytest.raises(ServerError, match=r"exited with 1[\s\S]*no-such-option"):
        server.start()
    assert not server.running
    server.close()


def test_cluster_spreads_keys_and_heals(cluster: RedisCluster) -> None:
    """Each master answers for its own keys, and a killed one comes back with its slots."""
    key = next(k for k in map(str, range(100)) if cluster.node_of(k) is cluster.nodes[1])
    assert cluster.nodes[1].call("SET", key, "v") == "OK"
    with pytest.raises(RefusedError, match="MOVED"):
        cluster.nodes[0].call("GET", key)
    cluster.nodes[1].kill()
    cluster.nodes[1].restart()
    cluster.wait_healthy()
    assert cluster.nodes[1].call("SET", key, "w") == "OK"
    assert_pauses(cluster.nodes[2])


def test_sentinel_fails_over(sentinel: RedisSentinel) -> None:
    """A crashed master is replaced; an order makes the other one master again.

    Which of the two leads once the crashed one is back is the sentinels' to decide.
    """
    old = sentinel.master
    old.call("SET", "k", "v")
    eventually(
        lambda: _expect(sentinel.replica.call("GET", "k"), "v"), within=5, what="replication"
    )
    new = sentinel.crash_master()
    assert new is not old
    assert new.call("GET", "k") == "v"
    old.restart()
    sentinel.wait_healthy()
    leading = sentinel.master
    assert sentinel.failover() is not leading


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise OSError(f"{found!r} is not {wanted!r}")


def test_postgres_answers_pauses_and_recovers(pg: Postgres) -> None:
    """A pause reaches open sessions too, and a killed server recovers what was committed."""
    pg.query("create table t as select 1 as a")
    assert_pauses(pg)
    pg.kill()
    pg.restart()
    assert pg.query("select a, null from t") == [["1", None]]
    assert pg.query("show max_connections") == [["20"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user")
def test_postgres_is_copied_out_of_a_closed_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where nobody cannot read the wheel, a copy that nobody can read is made, once."""
    require("postgres")
    postgres.readable_install.cache_clear()
    monkeypatch.setattr(postgres, "_open_to_others", lambda _: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try:
        copied = postgres.readable_install()
        assert copied.is_relative_to(tmp_path)
        version = subprocess.run([copied / "bin" / "postgres", "--version"], capture_output=True)
        assert version.stdout.startswith(b"postgres (PostgreSQL) 18")
        assert [folder.stat().st_mode & 0o777 for folder in tmp_path.iterdir()] == [0o755]
    finally:
        postgres.readable_install.cache_clear()


def test_dynalite_keeps_conditions_and_data(dynalite: Dynalite) -> None:
    """A failed condition is refused, and tables outlive a kill."""
    key = {"AttributeName": "k", "KeyType": "HASH"}
    dynalite.call(
        "CreateTable",
        {
            "TableName": "states",
            "KeySchema": [key],
            "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
        },
    )
    put = {
        "TableName": "states",
        "Item": {"k": {"S": "a"}},
        "ConditionExpression": "attribute_not_exists(k)",
    }
    eventually(lambda: dynalite.call("PutItem", put), within=5, what="the table")
    with pytest.raises(RefusedError, match="ConditionalCheckFailed"):
        dynalite.call("PutItem", put)
    assert_pauses(dynalite)
    dynalite.kill()
    dynalite.restart()
    assert dynalite.call("ListTables", {}) == {"TableNames": ["states"]}


def test_d1_over_rest(cloudflare: Miniflare) -> None:
    """D1 answers in Cloudflare's shape: rows, the count of changes, and errors."""
    cloudflare.query("limits", "create table t (k text primary key, n integer)")
    assert cloudflare.query("limits", "insert into t values (?, ?)", "a", 1)["meta"]["changes"] == 1
    update = "update t set n = 2 where k = ? and n = ?"
    assert cloudflare.query("limits", update, "a", 9)["meta"]["changes"] == 0
    assert cloudflare.query("limits", "select * from t")["results"] == [{"k": "a", "n": 1}]
    path = f"/accounts/{cloudflare.account}/d1/database/limits/query"
    status, text = cloudflare.api("POST", path, {"sql": "select nonsense"})
    assert status == 400
    assert json.loads(text)["errors"][0]["message"].startswith("D1_ERROR")


def test_kv_over_rest(cloudflare: Miniflare) -> None:
    """KV values are put, read by the worker too, deleted; a TTL under a minute is refused."""
    path = cloudflare.kv_path("states", "shared")
    assert cloudflare.api("PUT", f"{path}?expiration_ttl=60", "text")[0] == 200
    assert cloudflare.api("GET", path) == (200, "text")
    assert http_call(cloudflare.port, "GET", "/kv") == (200, "text")
    assert cloudflare.api("PUT", f"{path}?expiration_ttl=59", "text")[0] == 400
    assert cloudflare.api("DELETE", path)[0] == 200
    assert cloudflare.api("GET", path)[0] == 404


def test_rest_wants_the_token(cloudflare: Miniflare) -> None:
    """Without the right bearer token, and for unknown things, the REST API refuses."""
    path = f"/client/v4{cloudflare.kv_path('states', 'k')}"
    wrong = {"Authorization": "Bearer wrong"}
    assert http_call(cloudflare.port, "GET", path)[0] == 401
    assert http_call(cloudflare.port, "GET", path, headers=wrong)[0] == 401
    assert cloudflare.api("GET", cloudflare.kv_path("unknown", "k"))[0] == 404


def test_durable_objects_survive_a_kill(cloudflare: Miniflare) -> None:
    """The worker's Durable Object counts on over pause and SIGKILL."""
    assert http_call(cloudflare.port, "GET", "/") == (200, "1")
    assert_pauses(cloudflare)
    cloudflare.kill()
    cloudflare.restart()
    assert http_call(cloudflare.port, "GET", "/") == (200, "2")


def test_deno_serves_a_script(tmp_path: Path) -> None:
    """A script gets its arguments, its permissions and a folder that outlives a kill."""
    require("deno")
    script = tmp_path / "counter.ts"
    script.write_text(DENO_COUNTER)
    flags = ["--unstable-kv", "--allow-net", "--allow-env", "--allow-read", "--allow-write"]
    with Deno(script, permissions=flags, args=["hello"]) as server:
        assert http_call(server.port, "GET", "/") == (200, "hello")
        assert http_call(server.port, "GET", "/count") == (200, "1")
        assert_pauses(server)
        server.kill()
        server.restart()
        assert http_call(server.port, "GET", "/count") == (200, "2")


def test_deno_runs_a_script_to_its_end(tmp_path: Path) -> None:
    """A script without permissions cannot read the environment."""
    require("deno")
    script = tmp_path / "env.ts"
    script.write_text('console.log(Deno.env.get("WORD"));')
    assert deno_run(script, permissions=["--allow-env"], env={"WORD": "x"}).stdout == "x\n"
    assert "NotCapable" in deno_run(script, env={"WORD": "x"}).stderr


def test_proxy_forwards_and_counts(valkey: Valkey, proxy: FaultProxy) -> None:
    """Without a fault, bytes pass both ways and are counted."""
    assert call(proxy.port, "PING") == "PONG"
    ping, pong = b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"
    eventually(
        lambda: _expect((proxy.bytes_to_server, proxy.bytes_to_client), (len(ping), len(pong))),
        within=2,
        what="the counters",
    )
    assert proxy.connections == 1
    assert proxy.url_of(valkey) == f"redis://127.0.0.1:{proxy.port}"


def test_proxy_delays_replies(proxy: FaultProxy) -> None:
    """A delay is felt by the client and ends with restore()."""
    proxy.delay(1_000)
    started = time.monotonic()
    assert call(proxy.port, "PING") == "PONG"
    assert time.monotonic() - started >= 1
    proxy.restore()
    started = time.monotonic()
    assert call(proxy.port, "PING") == "PONG"
    assert time.monotonic() - started < 1


def test_proxy_cuts_after_the_request(valkey: Valkey, proxy: FaultProxy) -> None:
    """The server acts, the client never hears of it; other requests pass."""
    proxy.cut_after_request(match=b"INCR", times=1)
    assert call(proxy.port, "PING") == "PONG"
    with pytest.raises(OSError):  # noqa: PT011 - closed or reset, as the kernel likes
        call(proxy.port, "INCR", "n")
    assert valkey.call("GET", "n") == "1"
    assert call(proxy.port, "INCR", "n") == 2


def test_proxy_swallows(valkey: Valkey, proxy: FaultProxy) -> None:
    """Nothing reaches the server, nothing comes back; a tainted connection is closed at the end."""
    proxy.swallow()
    with socket.create_connection((proxy.host, proxy.port), 5) as client:
        client.sendall(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert valkey.call("GET", "n") is None
        proxy.restore()
        client.settimeout(5)
        assert client.recv(1) == b""
    assert call(proxy.port, "PING") == "PONG"


def test_proxy_refuses_and_restores(proxy: FaultProxy) -> None:
    """Open connections drop, new ones are refused, and the port comes back."""
    with socket.create_connection((proxy.host, proxy.port), 5) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(7) == b"+PONG\r\n"
        proxy.refuse()
        assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        call(proxy.port, "PING")
    proxy.restore()
    assert call(proxy.port, "PING") == "PONG"


def test_no_server_outlives_a_killed_test_run() -> None:
    """SIGKILL the process that started them: servers, even paused ones, and folders are gone."""
    require("valkey")
    require("postgres")
    code = (
        "import os, signal; from tests.servers import Postgres, Valkey; "
        "from tests.servers.keeper import family, keeper\n"
        "with Valkey() as one, Postgres() as two:\n"
        "    two.pause(); print(keeper().root, one.pid, *family(two.pid), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL, run.stderr
    root, *pids = run.stdout.split()
    assert len(pids) > 3
    wait_gone([int(pid) for pid in pids])
    eventually(lambda: _expect(Path(root).exists(), False), within=5, what="removal of the folder")


@pytest.mark.parametrize(
    ("ci", "name", "outcome"),
    [
        ("true", "absent", pytest.fail.Exception),
        ("", "absent", pytest.skip.Exception),
        ("true", "redis7", pytest.skip.Exception),
    ],
)
def test_a_missing_backend_fails_in_ci_and_skips_elsewhere(
    monkeypatch: pytest.MonkeyPatch, ci: str, name: str, outcome: type[BaseException]
) -> None:
    """The message names what is missing and the command that gets it."""

    def locate() -> Path:
        raise MissingError("the package absent", "python -m pip install absent")

    monkeypatch.setitem(missing.LOCATE, name, locate)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="absent is missing; get it with: python -m pip"):
        require(name)
