"""Runs the type checkers: over the files that exist only for them, and over the public API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import require
from tests.servers.node import node_binary, npm_package

ROOT = Path(__file__).parents[1]


def test_the_public_names_are_typed_as_promised() -> None:
    """Strict checking accepts what is right in tests/typing, and refuses what is marked wrong."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        # By the settings of the project, so that what `make types` has found out is known.
        [sys.executable, "-m", "mypy", str(ROOT / "tests" / "typing")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_has_a_type_that_all_checkers_agree_on(tmp_path: Path) -> None:
    """pyright finds no public name without a type, or with one that had to be guessed."""
    require("pyright")
    words = ["--verifytypes", "penstock", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(
        [
            str(node_binary()),
            str(npm_package("pyright") / "index.js"),
            *("--pythonpath", sys.executable),
            *words,
        ],
        # Beside the source pyright would take its own folder for the package.
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = json.loads(done.stdout)["typeCompleteness"]
    assert report["packageName"] == "penstock"
    assert report["exportedSymbolCounts"]["withKnownType"] > 200
    unclear = [
        f"{symbol['name']}: {finding['message']}"
        for symbol in report["symbols"]
        for finding in symbol["diagnostics"]
        if finding["severity"] == "error" and not _is_of_a_framework(symbol["name"], finding)
    ]
    assert not unclear, "\n".join(unclear)


def _is_of_a_framework(name: str, finding: dict[str, str]) -> bool:
    """In this mode pyright sees no types of other packages, and integrations are made of them."""
    return name.startswith("penstock.integrations.") and "unknown" in finding["message"]
