"""What `penstock serve` refuses to start on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import Postgres, require
from tests.servers.process import Port, environment

from .http.serving import Client, Penstock


def _serve(store: str) -> subprocess.CompletedProcess[str]:
    port = Port()
    flags = ["--no-grpc", "--http-port", str(port.number), "--store", store]
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", "serve", *flags],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_store_that_was_never_set_up_ends_the_start() -> None:
    """Waiting would not mend it, and failing open on it would be no limit at all."""
    require("postgres")
    with Postgres() as server:
        done = _serve(f"{server.url}?timeout_ms=20000")
    assert done.returncode == 2, done.stderr
    assert "penstock store init" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    """The text names the folder."""
    done = _serve(f"sqlite:///{tmp_path}/missing/limits.db")
    assert done.returncode == 2, done.stderr
    assert f"there is no folder {tmp_path}/missing" in done.stderr
    assert "Traceback" not in done.stderr


def test_services_of_tests_start_without_the_settings_of_a_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token there would be asked for by every service; `environment` leaves them out."""
    monkeypatch.setenv("PENSTOCK_TOKEN", "a-token-of-somebody-else")
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    with Penstock() as server:
        client = Client(server.port)
        assert client.get("/check/alice").status == 200
        client.close()
    assert {"PENSTOCK_TOKEN", "PENSTOCK_PURE"} & environment().keys() == {"PENSTOCK_PURE"}
