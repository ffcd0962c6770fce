"""What an installation does where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_without_a_compiler_the_build_goes_on_without_the_extension(tmp_path: Path) -> None:
    """The package is then interpreted, and complete otherwise."""
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir"]
    nobody = {**os.environ, "CC": str(tmp_path / "no-such-compiler")}
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    done = subprocess.run(
        [*wheel, "--wheel-dir", str(tmp_path), str(source)],
        env=nobody,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    target = tmp_path / "installed"
    built = next(tmp_path.glob("penstock-*.whl"))
    names = zipfile.ZipFile(built).namelist()
    assert not [name for name in names if name.endswith((".pyx", ".pxi", ".c"))]
    assert {"penstock/py.typed", "penstock/stores/durable_object/worker.js"} <= set(names)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*install, str(target), str(built)], check=True)
    program = (
        "import penstock; print(penstock.accelerated, bool(penstock.rate_limit('1/s').check('k')))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.split() == ["False", "True"]
