"""Commands that know strategies of a user's own: `--import` and its variable, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from shutil import copy
from typing import Any

import grpc
import pytest

from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub
from tests.servers import NotReady, eventually
from tests.servers.process import REPO, environment
from tests.service.http.serving import Client, Penstock
from tests.service.http.test_workers import workers_of
from tests.stores.redis.live import new_key, url_of

TOY = "tests.support.leaky_bucket"
# The command as it is installed, which does not look for modules in the working folder by itself.
INSTALLED = "from penstock.cli import main; import sys; sys.path.remove(''); sys.exit(main())"
POLICY = "  %s: {strategy: leakyBucket, capacity: %d, leakEvery: 1h}\n"
GOOD = "version: 1\nlimiters:\n" + POLICY % ("api", 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's working folder, with a module and a policy file."""
    for ending in ("py", "lua"):
        copy(REPO / "tests" / "support" / f"leaky_bucket.{ending}", tmp_path / f"limits.{ending}")
    (tmp_path / "penstock.yaml").write_text(GOOD)
    return tmp_path


def command(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """The exit code, and all that it said."""
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED, *words],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--import", "limits"], {}),
        (["--import", "json", "--import", "limits"], {}),
        ([], {"PENSTOCK_IMPORT": "limits"}),
        ([], {"PENSTOCK_IMPORT": "json, limits"}),
        (["--import", "limits"], {"PENSTOCK_IMPORT": "nowhere"}),
    ],
)
def test_a_module_of_the_working_folder_is_imported(
    folder: Path, words: list[str], variables: dict[str, str]
) -> None:
    """From the flag as often as it is given, or else from the variable."""
    code, said = command(folder, "check-config", *words, "penstock.yaml", **variables)
    assert (code, said) == (0, "penstock.yaml: good, 1 policy\n  api: limiter, 2 per key\n")


def test_without_it_the_file_is_refused(folder: Path) -> None:
    """With the strategies that are known."""
    code, said = command(folder, "check-config", "penstock.yaml")
    assert code == 2
    assert "limiters.api.strategy: must be one of gcra, " in said


def test_one_request_is_decided_by_it(folder: Path) -> None:
    """`penstock check` spends what the policy holds."""
    words = ("check", "alice", "--policy", "api", "--config", "penstock.yaml")
    flags = ("--import", "limits", "--store", "sqlite:///limits.db")
    assert [command(folder, *words, *flags)[0] for _ in range(3)] == [0, 0, 3]


def test_the_doctor_says_which_are_known(folder: Path) -> None:
    """And what is wrong with a module, beside all the rest."""
    given = {"PENSTOCK_IMPORT": "limits", "PENSTOCK_CONFIG": "penstock.yaml"}
    code, said = command(folder, "doctor", **given)
    assert code == 0
    assert "sliding_window_log, leaky_bucket\n" in said
    assert "penstock.yaml is good" in said
    code, said = command(folder, "doctor", "--import", "nowhere")
    assert code == 2
    assert "strategies: WRONG: --import nowhere: there is no module nowhere" in said


@pytest.mark.parametrize(
    ("name", "source", "told"),
    [
        ("nowhere", None, "--import nowhere: there is no module nowhere, neither in "),
        ("nowhere.limits", None, "there is no module nowhere, neither in "),
        ("other.py", "", "--import other.py: there is no module other.py, neither in "),
        ("./other", "", "--import './other' is not the name of a module, such as shop.limits"),
        ("", "", "--import '' is not the name of a module"),
        ("other", "x = 1 /\n", "--import other cannot be imported: SyntaxError: invalid syntax"),
        ("other", "\n1 / 0\n", "ZeroDivisionError: division by zero ("),
        ("other", "\n1 / 0\n", "other.py, line 2)"),
        ("other", "import nowhere\n", "cannot be imported: ModuleNotFoundError: No module named"),
        ("other", "raise SystemExit(0)\n", "--import other cannot be imported: SystemExit: 0"),
        (
            "other",
            "import penstock\nclass Mine(penstock.strategies.Gcra):\n    name = 'gcra'\n"
            "penstock.register(Mine)\n",
            "--import other: the name 'gcra' is taken by penstock.strategies._gcra.Gcra",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused(
    folder: Path, name: str, source: str | None, told: str
) -> None:
    """In one line, with a code that says whose fault it is, before a port is opened."""
    if source is not None:
        (folder / "other.py").write_text(source)
    code, said = command(folder, "check-config", "--import", name, "penstock.yaml")
    assert (code, said.count("\n")) == (2, 1)
    assert told in said
    if name.isidentifier():
        code, served = command(folder, "serve", "--no-grpc", PENSTOCK_IMPORT=name)
        assert (code, served.count("\n")) == (2, 1)
        assert told in served
        assert "(--import is PENSTOCK_IMPORT here)" in served


class Importing(Penstock):
    """A service that finds the modules of the tests."""

    def popen_options(self) -> dict[str, Any]:
        return {"env": environment(PYTHONPATH=os.pathsep.join((str(REPO / "src"), str(REPO))))}


class Asking:
    """One service over HTTP and gRPC."""

    def __init__(self, server: Penstock) -> None:
        self._port = server.port
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        self._stub = RateLimiterStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def http(self, **body: object) -> bool:
        # A connection of its own, so that all workers are asked.
        client = Client(self._port, timeout=20)
        try:
            reply = client.post("/check", body)
            assert reply.status in (200, 429), reply.body
            return reply.status == 200
        finally:
            client.close()

    def grpc(self, policy: str, key: str) -> bool:
        request = pb.CheckRequest(policy=policy, key=key)
        reply = self._stub.Check(request, timeout=20, wait_for_ready=True)
        return bool(reply.decision.allowed)

    def admitted(self, policy: str, key: str, count: int) -> int:
        """How many of so many at once, half of them through each server."""

        def ask(number: int) -> bool:
            return self.grpc(policy, key) if number % 2 else self.http(policy=policy, key=key)

        with ThreadPoolExecutor(16) as crowd:
            return sum(crowd.map(ask, range(count)))


@pytest.mark.parametrize(("store", "workers"), [("memory", 1), ("valkey", 2)])
def test_a_service_serves_it_over_http_and_grpc(tmp_path: Path, store: str, workers: int) -> None:
    """Exactly, by name and inline, whichever worker is asked: also one that was replaced, and after
    a reload of a file so long that another process parses it."""
    config, key = tmp_path / "penstock.yaml", new_key()
    config.write_text("version: 1\nlimiters:\n" + POLICY % ("api", 20))
    url = "memory://" if store == "memory" else f"{url_of('valkey')}?timeout_ms=20000"
    flags = ("--config", str(config), "--import", TOY, "--store", url, "--fail", "closed")
    with ExitStack() as stack:
        server = stack.enter_context(Importing(*flags, "--workers", str(workers), grpc=True))
        asking = Asking(server)
        stack.callback(asking.close)
        assert asking.admitted("api", key, 60) == 20
        inline = {"key": key, "limit": 3, "window_ms": 3_600_000, "strategy": "leaky_bucket"}
        assert [asking.http(**inline) for _ in range(4)] == [True, True, True, False]
        if workers > 1:
            _replace_all(server)
            assert asking.admitted("api", key, 20) == 0
        many = "".join(POLICY % (f"p{number}", 5) for number in range(200))
        assert len(many) > 8_192
        config.write_text("version: 1\nlimiters:\n" + many)
        eventually(lambda: _serves(server, 200), within=20, what="the long file")
        assert asking.admitted("p7", key, 20) == 5


def _serves(server: Penstock, policies: int) -> None:
    client = Client(server.port)
    try:
        # More than once, since there is more than one worker.
        ready = [client.get("/ready").json for _ in range(4)]
    finally:
        client.close()
    if any(each["policies"] != policies for each in ready):
        raise NotReady(str(ready))


def _replace_all(server: Penstock) -> None:
    before = workers_of(server.pid)
    for pid in before:
        os.kill(pid, signal.SIGKILL)

    def replaced() -> None:
        if len(set(workers_of(server.pid)) - set(before)) < len(before):
            raise NotReady("not yet")
        server.ping()

    eventually(replaced, within=30, what="the successors")
