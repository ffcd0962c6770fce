"""The examples of the service do what they say, against a real one."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli._serve import configure
from tests.servers.process import REPO
from tests.service.http.serving import Penstock

FOLDER = REPO / "examples" / "service"


@pytest.fixture
def service() -> Iterator[Penstock]:
    with Penstock("--config", str(FOLDER / "penstock.yaml"), grpc=True) as server:
        yield server


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_policies_are_good(capsys: pytest.CaptureFixture[str]) -> None:
    """As `penstock check-config` finds them, in words."""
    assert main(["check-config", str(FOLDER / "penstock.yaml")]) == 0
    out = capsys.readouterr().out
    assert "  default: limiter, 10 a minute per key\n" in out
    assert "  api: limiter, 100 a minute per key, 20 at once\n" in out
    assert "  model: budget, 200,000 tokens an hour per key\n" in out
    assert "  jobs: admission, 4 to 200 in flight\n" in out


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: apt-get install curl")
def test_the_calls_of_curl(service: Penstock) -> None:
    """Every line of an answer is JSON, and no call is refused."""
    out = _run("sh", str(FOLDER / "curl.sh"), f"http://127.0.0.1:{service.port}")
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert len(answers) == 10
    assert not [answer for answer in answers if "title" in answer]
    assert answers[8]["live_ids"] == [answers[7]["lease_id"]]


def test_the_client_of_grpc(service: Penstock) -> None:
    """A burst, a debit and a slot."""
    out = _run(
        sys.executable, str(FOLDER / "grpc_client.py"), f"127.0.0.1:{service.grpc_port}"
    ).splitlines()
    # The machine may be slow enough for a unit or two to come back meanwhile.
    assert out[0] in [f"check: {n} allowed, {25 - n} denied" for n in range(20, 25)]
    assert out[2:] == [
        "debit: 198800 of 200000 tokens left",
        "admit: a slot, alive: True",
    ]


def _parsed(words: list[str]) -> None:
    """Whether `penstock serve` would understand its flags."""
    import argparse

    assert words[0] == "serve"
    parser = argparse.ArgumentParser(exit_on_error=False)
    configure(parser)
    parser.parse_args(words[1:])


def test_the_unit_of_systemd(tmp_path: Path) -> None:
    """systemd understands it, where there is one, and `penstock serve` its flags."""
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    text = (FOLDER / "penstock.service").read_text()
    unit.read_string(text)
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program == "/opt/penstock/bin/penstock"
    _parsed(words)
    if shutil.which("systemd-analyze") is None:
        return
    here = tmp_path / "penstock.service"
    # Quoted, since its path may have a space.
    here.write_text(text.replace(program, f'"{sys.executable}"'))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False
    )
    assert "penstock.service" not in done.stderr


def test_the_container_file() -> None:
    """What it copies is there, and `penstock serve` understands its flags."""
    lines = (FOLDER / "Containerfile").read_text().splitlines()
    commands = [line for line in lines if line.startswith("CMD ")]
    _parsed(json.loads(commands[-1].removeprefix("CMD ")))
    copied = [
        line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line
    ]
    assert copied
    assert all((REPO / path).exists() for path in copied)
