"""`penstock load` against a real service, and against servers that do not behave."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.shell import Run
from tests.service.grpc.certificates import authority, signed
from tests.service.http.serving import Penstock

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with Penstock() as server:
        yield f"http://127.0.0.1:{server.port}"


def test_a_service_is_loaded_and_the_table_says_how_it_went(run: Run, service: str) -> None:
    """Every request is answered; quantiles rise; progress goes to standard error."""
    code, out, err = run("load", service, "--seconds", "1.2", "--connections", "8")
    assert code == 0
    counts = dict(re.findall(r"^  (answered|allowed|denied|failed) +([\d,]+)", out, re.MULTILINE))
    assert int(counts["answered"].replace(",", "")) > 100
    assert counts["allowed"] == counts["answered"]
    assert (counts["denied"], counts["failed"]) == ("0", "0")
    assert "p99.9" in out
    assert re.search(r"1\.0 s .*/s  allowed", err)


def test_a_pace_is_kept(run: Run, service: str) -> None:
    """As many as were asked for, give or take what the machine does."""
    code, out, _ = run("load", service, "--seconds", "1", "--rate", "200", "--json")
    result = json.loads(out)
    assert code == 0
    assert 150 <= result["answered"] <= 230
    latency = result["latency_ms"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]


def test_denials_are_answers(run: Run, service: str) -> None:
    """The default policy admits ten of each client."""
    code, out, _ = run(
        *("load", service, "--seconds", "0.5", "--policy", "default", "--keys", "3", "--json")
    )
    result = json.loads(out)
    assert code == 0
    assert result["allowed"] == 30
    assert result["denied"] > 0


def test_a_policy_that_is_not_there_is_a_failure_in_its_own_words(run: Run, service: str) -> None:
    """Code 1, and what the service said."""
    code, out, _ = run("load", service, "--seconds", "0.2", "--policy", "nope")
    assert code == 1
    assert "x status 404: there is no policy 'nope'" in out


def test_nobody_there_is_code_1(run: Run) -> None:
    """In one line, after the one that says what is asked."""
    code, out, err = run("load", "http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.splitlines()[1:] == [
        "penstock: cannot connect to http://127.0.0.1:1: " + err.splitlines()[1].rpartition(": ")[2]
    ]


class _Guarded(Penstock):
    """One that answers nobody without a certificate: it is up when it accepts."""

    def ping(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), 1).close()


def test_tls_a_token_and_a_certificate(run: Run, tmp_path: Path) -> None:
    """The service that asks for all of them."""
    ca = authority(tmp_path, "ca")
    ours, theirs = signed(tmp_path, "server", ca), signed(tmp_path, "client", ca)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    flags = ("--tls-cert", ours.cert, "--tls-key", ours.key, "--tls-ca", ca.cert)
    with _Guarded(*flags, "--token-file", str(token)) as guarded:
        url = f"https://127.0.0.1:{guarded.port}"
        asked = ("load", url, "--seconds", "0.3", "--connections", "2", "--ca", ca.cert)
        shown = ("--cert", theirs.cert, "--key", theirs.key)
        assert run(*asked, *shown, "--token-file", str(token))[0] == 0
        code, out, _ = run(*asked, *shown)
        assert code == 1
        assert "status 401" in out
        assert run(*asked)[0] == 1


@contextmanager
def _misbehaving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request on each connection and then does `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(client,), daemon=True).start()

        def talk(client: socket.socket) -> None:
            with client:
                if client.recv(65_536):
                    answer(client)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "a connection that ended before the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "a connection that ended before the answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "an answer that is not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "with a Content-Length"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno", "status 500"),
    ],
)
def test_an_answer_that_is_none_is_a_failure(run: Run, said: bytes, why: str) -> None:
    """It is counted, the connection is made again, and the run goes on to its end."""
    with _misbehaving(lambda client: client.sendall(said)) as url:
        code, out, _ = run("load", url, "--seconds", "0.3", "--connections", "2", "--json")
    failed = json.loads(out)["failed"]
    assert code == 1
    assert any(why in reason for reason in failed)
    assert sum(failed.values()) > 2


def test_a_silent_server_is_not_waited_for_without_end(run: Run) -> None:
    """What is unanswered some seconds after the end has failed."""
    with _misbehaving(lambda client: time.sleep(30)) as url:
        start = time.monotonic()
        code, out, _ = run("load", url, "--seconds", "0.2", "--connections", "3", "--json")
    assert code == 1
    assert time.monotonic() - start < 20
    assert json.loads(out)["failed"] == {"no answer within 5 s of the end": 3}


def test_an_interrupt_ends_early_with_the_table(service: str) -> None:
    """Ctrl-C is a way to end, not a way to lose what was measured."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "load", service, "--seconds", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "  answered" in out
