"""The files under wire/ are what the strategies and the oracle say, byte for byte."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from penstock import (
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.core._lua import LuaScript
from tools.wire.__main__ import main
from tools.wire.files import derive, drifted
from tools.wire.manifest import published

WIRE = Path(__file__).resolve().parents[2] / "wire"

SCRIPTS = [script for program in published() for script in (program.check, program.read)]

CONTRACT_ARGV = {
    "gcra.check": ["now", "periodMs", "limit", "burst", "cost"],
    "tokenBucket.check": ["now", "capacity", "refillPerSec", "cost"],
    "fixedWindow.check": ["now", "limit", "windowMs", "cost"],
    "slidingWindow.check": ["now", "windowMs", "limit", "cost", "buckets"],
    "slidingWindowLog.check": ["now", "windowMs", "limit", "cost"],
}


@pytest.mark.parametrize("name", derive(WIRE))
def test_a_file_holds_what_is_derived(name: str) -> None:
    """Run `python -m tools.wire` when this fails, and say in the changelog why."""
    assert (WIRE / name).read_bytes() == derive(WIRE)[name].encode()


def test_nothing_else_lies_among_the_scripts() -> None:
    """A script that nothing derives would rot."""
    assert drifted(WIRE) == []


def test_the_command_finds_a_drift_and_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--check names what differs and fails; without it, the folder is brought up to date."""
    folder = tmp_path / "wire"
    shutil.copytree(WIRE, folder)
    assert main(["--check", str(folder)]) == 0
    (folder / "scripts/gcra.check.lua").write_text("return 1\n")
    (folder / "scripts/stray.lua").write_text("return 1\n")
    (folder / "manifest.json").unlink()
    assert main(["--check", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert [Path(line.split(": ")[1]).name for line in shown.splitlines()] == [
        "manifest.json",
        "gcra.check.lua",
        "stray.lua",
    ]
    assert main([str(folder)]) == 0
    assert main(["--check", str(folder)]) == 0


def test_the_manifest_says_what_the_contract_says() -> None:
    """Names, order of arguments and reply are fixed: other programs rely on them."""
    manifest = json.loads((WIRE / "manifest.json").read_text())
    assert manifest["contractVersion"] == "1"
    assert manifest["frozen"] is False
    assert manifest["replyTuple"] == ["allowed", "limit", "remaining", "resetAt", "retryAfterMs"]
    assert manifest["nowArgv"] == 1
    argv = {entry["name"]: entry["argv"] for entry in manifest["scripts"]}
    for name, names in CONTRACT_ARGV.items():
        assert argv[name] == names
        assert argv[name.replace(".check", ".read")] == []


def test_the_manifest_hashes_the_files_it_names() -> None:
    """A client can verify what it loads."""
    for entry in json.loads((WIRE / "manifest.json").read_text())["scripts"]:
        text = (WIRE / entry["file"]).read_bytes()
        assert hashlib.sha256(text).hexdigest() == entry["sha256"]
        assert set(entry) == {"name", "strategy", "role", "file", "keys", "argv", "sha256"}


def test_each_strategy_runs_the_scripts_that_are_published() -> None:
    """What a store sends is what the manifest lists, with the values in the listed order."""
    expected = {
        "gcra": (gcra(5, 1000, 7), b"9 1000 5 7 2"),
        "tokenBucket": (token_bucket(5, 0.1), b"9 5 0.1 2"),
        "fixedWindow": (fixed_window(5, 1000), b"9 5 1000 2"),
        "fixedWindowFirst": (fixed_window(5, 1000, "first"), b"9 5 1000 2"),
        "calendarQuota": (calendar_quota(5, "day"), b"9 5 0 0 86400000 172800000 2"),
        "slidingWindow": (sliding_window(5, 1000, 4), b"9 1000 5 2 4"),
        "slidingWindowLog": (sliding_window_log(5, 1000), b"9 1000 5 2"),
    }
    assert list(expected) == [program.name for program in published()]
    for program in published():
        strategy, argv = expected[program.name]
        assert strategy.lua is not None
        assert (strategy.lua.check, strategy.lua.read) == (program.check, program.read)
        assert b" ".join(strategy.lua.argv(9, 2)) == argv


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_touches_one_key_and_loses_no_digits(script: LuaScript) -> None:
    """A Cluster allows no other key, and text made by `..` or tostring keeps 14 digits."""
    source = "\n".join(line.split("--")[0] for line in script.source.splitlines())
    assert set(re.findall(r"KEYS\[(.+?)\]", source)) == {"1"}
    assert ".." not in source
    assert "tostring" not in source
    assert set(re.findall(r"%\.\w+", source)) <= {"%.17g", "%.0f"}
