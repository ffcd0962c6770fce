"""Several workers: signals, reloads and deaths, on real processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.servers import NotReady, Valkey, eventually, require

from .serving import Client, Penstock, post_bytes
from .test_serve import run

BODY = b'{"key":"k","limit":1000,"window_ms":3600000}'
ONE = "version: 1\nlimiters:\n  default: {strategy: fixedWindow, limit: %d, window: 1h}\n"
SLOTS = "  jobs: {concurrency: {minLimit: 4, maxLimit: 4, leaseTtl: 30s}}\n"


def sqlite(folder: Path) -> list[str]:
    return ["--workers", "2", "--store", f"sqlite:///{folder}/limits.db?timeout_ms=10000"]


def ask(port: int, path: str) -> Any:
    client = Client(port)
    try:
        return client.get(path)
    finally:
        client.close()


def workers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in _command_of(child)]


def _command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # gone since it was listed
        return b""


def counted(valkey: Valkey) -> int:
    redis = pytest.importorskip("redis")
    client = redis.Redis(port=valkey.port)
    try:
        [key] = client.keys("*:k")
        return int(client.hget(key, "c"))
    finally:
        client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_leaves_no_admitted_request_unanswered(number: int) -> None:
    """As Ctrl-C and service managers send it: to the supervisor and to each worker."""
    require("valkey")
    flags = ["--workers", "2", "--drain", "8", "--store"]
    request = post_bytes("/check", BODY)
    with (
        Valkey() as valkey,
        Penstock(*flags, f"{valkey.url}?timeout_ms=6000") as server,
    ):
        process = server.process()
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        lines = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(8)]
        for line in lines:
            line.sendall(request)
            assert line.recv(9_999).startswith(b"HTTP/1.1 200")
        valkey.pause()
        for line in lines:
            line.sendall(request)
        eventually(lambda: _in_flight(server, 8), within=5, what="all at the store")
        os.killpg(process.pid, number)
        eventually(lambda: _says(server, "stopping"), within=5, what="the stop")
        valkey.resume()
        answers = [line.recv(9_999)[:12] for line in lines]
        assert answers == [b"HTTP/1.1 200"] * 8
        assert process.wait(15) == 0
        assert counted(valkey) == 16
        for line in lines:
            line.close()


def test_a_signal_to_the_group_stops_it_while_it_starts(tmp_path: Path) -> None:
    """A worker that is not up yet is ended by it, and that is no fault."""
    server = Penstock(*sqlite(tmp_path))
    with server.log_path.open("wb") as log:
        process = subprocess.Popen(
            server.command(),
            stdout=log,
            stderr=log,
            start_new_session=True,
            **server.popen_options(),
        )

    def starting() -> None:
        if not workers_of(process.pid):
            raise NotReady("no worker yet")

    try:
        eventually(starting, within=20, what="the first worker")
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
        assert "could not start" not in server.log_path.read_text()
    finally:
        process.kill()
        process.wait()
        server.close()


def _in_flight(server: Penstock, wanted: int) -> None:
    # Two looks are needed to have both workers' counts, which they publish once a second.
    text = ask(server.port, "/metrics").body.decode()
    if f"penstock_http_in_flight {wanted}" not in text:
        raise NotReady(text[-300:])


def _says(server: Penstock, word: str) -> None:
    if word not in server.log_path.read_text():
        raise NotReady(server.log_path.read_text())


def test_the_second_signal_ends_all_of_them_at_once(tmp_path: Path) -> None:
    """Though a client is still being waited for."""
    with Penstock(*sqlite(tmp_path), "--drain", "60") as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        process, workers = server.process(), workers_of(server.pid)
        with socket.create_connection(("127.0.0.1", server.port), 10) as line:
            line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost")
            eventually(lambda: _connected(server, 2), within=5, what="the connection")
            process.send_signal(signal.SIGTERM)
            eventually(lambda: _says(server, "stopping"), within=5, what="the stop")
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == 130
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_a_hangup_does_not_end_a_service_that_is_answering_its_last_calls(tmp_path: Path) -> None:
    """The policy file is no longer followed then; the signal is ignored."""
    config = tmp_path / "penstock.yaml"
    config.write_text(ONE % 5)
    with Penstock("--config", str(config), *sqlite(tmp_path), "--drain", "60") as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        process = server.process()
        with socket.create_connection(("127.0.0.1", server.port), 10) as line:
            line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost")
            eventually(lambda: _connected(server, 2), within=5, what="the connection")
            process.send_signal(signal.SIGTERM)
            eventually(lambda: _says(server, "stopping"), within=5, what="the stop")
            process.send_signal(signal.SIGHUP)
            line.sendall(b"\r\n\r\n")
            assert line.recv(9_999).startswith(b"HTTP/1.1 200")
        assert process.wait(15) == 0


def _connected(server: Penstock, wanted: int) -> None:
    text = ask(server.port, "/metrics").body.decode()
    if f"penstock_http_connections {wanted}" not in text:
        raise NotReady(text[-300:])


def test_workers_share_their_slots(tmp_path: Path) -> None:
    """Whichever of them took a slot, any of them renews it, gives it back and counts it; also one
    of a policy that a reload has brought."""
    config = tmp_path / "penstock.yaml"
    config.write_text(ONE % 5)
    with Penstock("--config", str(config), *sqlite(tmp_path)) as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        config.write_text(ONE % 5 + SLOTS)

        def served() -> None:
            for _ in range(8):
                if ask(server.port, "/ready").json["policies"] != 2:
                    raise NotReady("not yet")

        eventually(served, within=10, what="the policy")
        clients = [Client(server.port) for _ in range(12)]
        asked = {"policy": "jobs", "key": "k"}
        replies = [client.post("/v1/admit", asked) for client in clients]
        held = [reply.json["lease_id"] for reply in replies if reply.json["lease_id"]]
        assert len(held) == 4
        beat = clients[5].post("/v1/heartbeat", {"lease_ids": held})
        assert beat.json["live_ids"] == held
        for client, lease_id in zip(clients, held * 2, strict=False):
            assert client.post("/v1/release", {"lease_id": lease_id}).status == 200
        replies = [client.post("/v1/admit", asked) for client in clients]
        assert sum(reply.json["decision"]["allowed"] for reply in replies) == 4
        text = clients[0].get("/metrics").body.decode()
        assert 'penstock_slots_limit{policy="jobs"} 4\n' in text
        assert 'penstock_slots_in_flight{policy="jobs"} 4\n' in text
        for client in clients:
            client.close()


def test_a_worker_that_dies_is_replaced_while_the_file_is_bad(tmp_path: Path) -> None:
    """By one that serves the last good file, and tells what is wrong with the one there is."""
    config = tmp_path / "penstock.yaml"
    config.write_text(ONE % 5)
    with Penstock("--config", str(config), *sqlite(tmp_path)) as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        config.write_text(ONE % 7)
        eventually(lambda: _limits(server, {7: 8}), within=10, what="the good file")
        config.write_text("version: 1\nlimiters: {x: {}}\n")
        eventually(lambda: _says(server, "limiters.x"), within=10, what="the bad file's refusal")
        before = workers_of(server.pid)
        for pid in before:
            os.kill(pid, signal.SIGKILL)

        def replaced() -> None:
            fresh = set(workers_of(server.pid)) - set(before)
            if len(fresh) < 2 or ask(server.port, "/ready").json["reloaded"]:
                raise NotReady("not yet")

        eventually(replaced, within=20, what="two successors that tell of the bad file")
        _limits(server, {7: 8})
        assert "could not start" not in server.log_path.read_text()


def _limits(server: Penstock, wanted: dict[int, int]) -> None:
    """The limits that eight clients on eight connections are told."""
    told: Counter[int] = Counter()
    for _ in range(8):
        policy = ask(server.port, "/check/alice").headers["ratelimit-policy"]
        told[int(policy.partition("q=")[2].partition(";")[0])] += 1
    if told != wanted:
        raise NotReady(str(told))


def counters(server: Penstock) -> dict[str, float]:
    """Every counter that a scrape shows, the parts of histograms included."""
    text = ask(server.port, "/metrics").body.decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    gauges = {family for family, kind in kinds.items() if kind == "gauge"}
    return {name: float(value) for name, _, value in samples if name not in gauges}


DECIDED = 'penstock_decisions_total{policy="default",outcome="allowed"}'


def test_counters_never_go_back_though_all_workers_are_killed(tmp_path: Path) -> None:
    """What was shown, and what a worker had told, outlives it; its successor's counts are added."""
    config = tmp_path / "penstock.yaml"
    config.write_text(ONE % 10_000)
    flags = ("--config", str(config), *sqlite(tmp_path))
    with Penstock(*flags) as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        seen: dict[str, float] = {}

        def grows() -> dict[str, float]:
            shown = counters(server)
            # A policy that is gone and has counted nothing is shown no more.
            back = {name for name, value in seen.items() if shown.get(name, 0) < value}
            assert not back, {name: (seen[name], shown.get(name)) for name in back}
            seen.update(shown)
            return shown

        def shows(wanted: int) -> None:
            if grows()[DECIDED] != wanted:
                raise NotReady(str(seen[DECIDED]))

        for decided in (40, 80):
            for _ in range(40):
                assert ask(server.port, "/check/alice").status == 200
                grows()
            eventually(partial(shows, decided), within=10, what="all that was decided")
            before = workers_of(server.pid)
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            eventually(partial(_replaced, server, before), within=20, what="two successors")
            shows(decided)
        config.write_text((ONE % 10_000).replace("default", "other"))
        eventually(lambda: _serves(server, 404), within=10, what="the policy's end")
        grows()
        config.write_text(ONE % 10_000)
        eventually(lambda: _serves(server, 200), within=10, what="its return")
        grows()


def _replaced(server: Penstock, before: list[int]) -> None:
    fresh = set(workers_of(server.pid)) - set(before)
    if len(fresh) < 2 or ask(server.port, "/health").status != 200:
        raise NotReady(str(fresh))


def _serves(server: Penstock, status: int) -> None:
    """What eight clients on eight connections are told."""
    told = {ask(server.port, "/check/alice").status for _ in range(8)}
    if told != {status}:
        raise NotReady(str(told))


def test_a_scrape_counts_what_its_worker_has_just_decided(tmp_path: Path) -> None:
    """It need not wait until the worker tells by itself."""
    with Penstock(*sqlite(tmp_path)) as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        client = Client(server.port)
        for number in range(1, 6):
            assert client.get("/check/alice").status == 200
            shown = client.get("/metrics").body.decode()
            assert f"{DECIDED} {number}\n" in shown
        client.close()


def test_a_worker_that_is_stopped_is_replaced(tmp_path: Path) -> None:
    """The system would go on handing it connections, which nobody answers."""
    with Penstock(*sqlite(tmp_path)) as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        frozen, other = before = workers_of(server.pid)
        os.kill(frozen, signal.SIGSTOP)

        def replaced() -> None:
            now = workers_of(server.pid)
            if frozen in now or len(now) < 2:
                raise NotReady(str(now))

        eventually(replaced, within=30, what="a successor")
        assert other in workers_of(server.pid)
        assert f"worker {frozen} has been silent" in server.log_path.read_text()
        eventually(lambda: _serves(server, 200), within=20, what="answers to all")
        assert set(before) != set(workers_of(server.pid))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fifo_in_place_of_the_policy_file_ends_neither_reloads_nor_the_obedience_to_signals(
    tmp_path: Path, workers: int
) -> None:
    """It is told, the policies before it are served on, and what follows it is served."""
    config = tmp_path / "penstock.yaml"
    config.write_text(ONE % 5)
    flags = sqlite(tmp_path) if workers == 2 else []
    with Penstock("--config", str(config), *flags) as server:
        eventually(lambda: _says(server, "try:"), within=20, what="all workers")
        for limit in (6, 7):
            config.unlink()
            os.mkfifo(config)
            eventually(lambda: _tells(server, "it is a FIFO"), within=20, what="the refusal")
            os.kill(server.pid, signal.SIGHUP)
            assert ask(server.port, "/ready").status == 200
            config.unlink()
            config.write_text(ONE % limit)
            eventually(partial(_limits, server, {limit: 8}), within=20, what="the good file")
        config.unlink()
        os.mkfifo(config)
        eventually(lambda: _tells(server, "it is a FIFO"), within=20, what="the refusal")
        server.process().send_signal(signal.SIGTERM)
        assert server.process().wait(20) == 0


def _tells(server: Penstock, problem: str) -> None:
    told = ask(server.port, "/ready").json["reload_error"]
    if problem not in told:
        raise NotReady(told)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_port_that_is_taken_is_noticed_though_workers_share_theirs(
    tmp_path: Path, protocol: str
) -> None:
    """Two services on one port would each admit the limit."""
    with Penstock(*sqlite(tmp_path), grpc=True) as server:
        port = server.port if protocol == "http" else server.grpc_port
        other = "--no-grpc" if protocol == "http" else "--no-http"
        done = run("serve", other, f"--{protocol}-port", str(port), *sqlite(tmp_path))
        assert done.returncode == 2
        assert f"127.0.0.1:{port}" in done.stderr
        assert f"--{protocol}-port" in done.stderr


def test_workers_that_cannot_start_end_with_the_code_that_one_would(tmp_path: Path) -> None:
    """2 for a mistake, whoever of them finds it."""
    done = run("serve", "--no-grpc", "--workers", "2", "--store", "carrier-pigeon://")
    assert done.returncode == 2
    assert "carrier-pigeon" in done.stderr
    assert "Traceback" not in done.stderr
