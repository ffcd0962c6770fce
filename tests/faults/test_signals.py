"""A main thread that is interrupted by a real signal handler, some hundred times a second."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stores.postgres.live import new_table, url_of

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")

SECONDS = 3


def _soak(what: str) -> dict[str, Any]:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.signals", what]
    done = subprocess.run(
        [*command, str(SECONDS)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("what", ["sqlite", "postgres", "acquire", "lease"])
def test_nobody_beside_an_interrupted_thread_notices(what: str, tmp_path: Path) -> None:
    """Three threads beside it are served all along, and everybody is when it is over; what was
    spent is what they were told, but for interrupted calls and those told of a doubt."""
    where = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/limits.db",
        "postgres": lambda: url_of(new_table()),
    }.get(what, lambda: what)()
    told = _soak(where)
    assert told["interrupted"] > 50
    assert (told["hanging"], told["errors"]) == (0, [])
    assert told["last"] > 0
    if told["spent"] is not None:
        most = told["admitted"] + told["in_doubt"] + told["interrupted"]
        most += 0 if what != "lease" else 3 * told["interrupted"] + 3
        assert told["admitted"] <= told["spent"] <= most
