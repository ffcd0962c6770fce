"""What `penstock serve` refuses to start on."""

from __future__ import annotations

import subprocess
import sys

from tests.servers import Postgres, require


def test_a_store_that_was_never_set_up_ends_the_start() -> None:
    """Waiting would not mend it, and failing open on it would be no limit at all."""
    require("postgres")
    with Postgres() as server:
        store = f"{server.url}?timeout_ms=20000"
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", "serve", "--no-grpc", "--store", store],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert "penstock store init" in done.stderr
    assert "Traceback" not in done.stderr
