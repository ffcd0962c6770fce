"""The workflows: well-formed, and they build and run what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import require
from tests.servers.process import REPO
from tools.actionlint import BINARY, PASSED, WORKFLOWS, digest

PYTHONS = ("310", "311", "312", "313", "314")

# Runner to the platform, its architecture, and the tags of the wheels that it builds.
BUILDS = {
    "ubuntu-24.04": ("linux", "x86_64", ("manylinux_x86_64", "musllinux_x86_64")),
    "ubuntu-24.04-arm": ("linux", "aarch64", ("manylinux_aarch64", "musllinux_aarch64")),
    "macos-15-intel": ("macos", "x86_64", ("macosx_x86_64",)),
    "macos-15": ("macos", "arm64", ("macosx_arm64",)),
    "windows-2025": ("windows", "AMD64", ("win_amd64",)),
}


def read(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((REPO / ".github" / "workflows" / name).read_text())


def actionlint(*files: Path) -> subprocess.CompletedProcess[str]:
    require("actionlint")
    words = ["-no-color", *map(str, files)]
    return subprocess.run([BINARY, *words], capture_output=True, text=True, check=False)


def test_the_workflows_are_those_in_which_actionlint_found_nothing() -> None:
    """Keys, expressions, runners, the inputs of actions."""
    assert len(WORKFLOWS) == 2
    assert PASSED.read_text().strip() == digest(), "check them: make workflows"


def test_actionlint_finds_nothing_in_the_workflows() -> None:
    """Where it was built."""
    done = actionlint(*WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_actionlint_finds_what_is_wrong(tmp_path: Path) -> None:
    """So it did look."""
    text = WORKFLOWS[0].read_text().replace("ubuntu-24.04", "ubuntu-1.04", 1)
    (tmp_path / "wrong.yml").write_text(text)
    done = actionlint(tmp_path / "wrong.yml")
    assert done.returncode == 1
    assert 'label "ubuntu-1.04" is unknown' in done.stdout


def test_ci_runs_what_a_newcomer_runs() -> None:
    """`make test`, and nothing that only CI knows."""
    steps = read("ci.yml")["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make test"]


def test_a_workflow_may_read_and_nothing_else() -> None:
    """What a pull request brings must not be able to write."""
    for file in WORKFLOWS:
        assert read(file.name)["permissions"] == {"contents": "read"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="cibuildwheel needs Python 3.11")
@pytest.mark.parametrize("runner", BUILDS)
def test_each_runner_builds_a_wheel_for_every_python(runner: str) -> None:
    """By cibuildwheel's own reading of the project."""
    platform, arch, tags = BUILDS[runner]
    flags = ["--print-build-identifiers", "--platform", platform, "--archs", arch]
    done = subprocess.run(
        [sys.executable, "-m", "cibuildwheel", *flags, str(REPO)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wanted = {f"cp{python}-{tag}" for python in PYTHONS for tag in tags}
    assert set(done.stdout.split()) == wanted


def test_the_runners_are_those_of_the_workflow() -> None:
    """Linux, macOS and Windows."""
    matrix = read("wheels.yml")["jobs"]["wheels"]["strategy"]["matrix"]
    assert matrix == {"runner": list(BUILDS)}


def test_the_pythons_are_those_that_the_project_names() -> None:
    """In its metadata, in its wheels and in CI."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    named = [
        text.rpartition(" ")[2].replace(".", "")
        for text in project["project"]["classifiers"]
        if text.startswith("Programming Language :: Python :: 3.")
    ]
    assert tuple(named) == PYTHONS
    steps = read("ci.yml")["jobs"]["pythons"]["steps"]
    (versions,) = [step["with"]["python-version"] for step in steps if "setup" in str(step)]
    assert tuple(versions.replace(".", "").split()) == PYTHONS
