"""`penstock doctor`: it tells the truth, and ends with a code that says how grave it is."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.core._errors import EXTRAS
from tests.cli.shell import Run
from tests.servers.process import REPO
from tests.stores.redis.broken import broken_server, resp
from tests.stores.redis.live import url_of


def test_it_says_which_path_is_on_and_what_is_installed(run: Run) -> None:
    """A line per extra, with versions."""
    code, out, _ = run("doctor")
    assert code == 0
    assert "accelerated: checks in memory take the native path" in out
    for extra in EXTRAS:
        assert f"\n  {extra}: " in out


def test_it_says_why_the_native_path_is_off() -> None:
    """A variable is not a missing compiler."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "doctor"],
        capture_output=True,
        text=True,
        check=True,
        env={"PENSTOCK_PURE": "1", "PYTHONPATH": str(REPO / "src")},
    )
    assert "not accelerated: PENSTOCK_PURE is set" in done.stdout


def test_a_store_that_answers_is_timed(run: Run) -> None:
    """Connecting and a round trip, and without the password."""
    code, out, _ = run("doctor", "--store", url_of("valkey"))
    assert code == 0
    assert " answers, in " in out


def test_a_store_that_is_away_is_code_1(run: Run) -> None:
    """And the rest is looked at all the same."""
    code, out, _ = run("doctor", "--store", "redis://me:s3cret@127.0.0.1:1")
    assert code == 1
    assert "store: AWAY: " in out
    assert "s3cret" not in out


def test_a_wrong_file_is_code_2(run: Run, tmp_path: Path) -> None:
    """It is the graver of two."""
    path = tmp_path / "penstock.yaml"
    path.write_text("limiters: {api: {strategy: gcra}}")
    code, out, _ = run("doctor", "--store", "redis://127.0.0.1:1", "--config", str(path))
    assert code == 2
    assert "store: AWAY: " in out
    assert "policies: WRONG: " in out


@pytest.mark.parametrize("url", ["gopher://x", "redis://host:port"])
def test_a_wrong_url_is_code_2(run: Run, url: str) -> None:
    """It cannot become right by waiting."""
    code, out, _ = run("doctor", "--store", url)
    assert code == 2
    assert "store: WRONG: " in out


def test_a_good_file_is_counted(run: Run, tmp_path: Path) -> None:
    """By its policies."""
    path = tmp_path / "penstock.yaml"
    path.write_text("version: 1\nlimiters: {api: {strategy: fixedWindow, limit: 5, window: 1m}}\n")
    code, out, _ = run("doctor", "--config", str(path))
    assert code == 0
    assert f"policies: {path} is good, 1 policy" in out


@pytest.mark.parametrize(("ahead_s", "code"), [(0, 0), (3_600, 2), (-3_600, 0)])
def test_a_server_whose_clock_is_ahead_of_callers_that_decide_is_code_2(
    run: Run, ahead_s: int, code: int
) -> None:
    """Keys would expire too early for them. The server's own clock may be anything."""

    def reply(words: list[bytes]) -> bytes:
        shown = [b"%d" % (time.time() + ahead_s), b"0"]
        return resp(shown) if words[0] == b"TIME" else resp(None)

    with broken_server() as server:
        server.answer(reply)
        url = f"redis://127.0.0.1:{server.port}?timeout_ms=20000"
        found, out, _ = run("doctor", "--store", f"{url}&use_server_time=false")
        assert found == code
        assert ("s ahead of this machine's" in out) == (code == 2)
        assert run("doctor", "--store", url)[0] == 0
