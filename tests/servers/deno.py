"""Deno: a script that serves HTTP, or one that runs to its end.

A serving script finds its address in the environment variables HOST and PORT. Files it should keep
over a restart, such as a Deno KV database, belong into DATA_DIR.
"""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .node import http_call
from .process import TOOLS, MissingError, Server, environment


class Deno(Server):
    """`permissions` are Deno's own flags, `args` go to the script."""

    name = "deno"

    def __init__(
        self,
        script: Path,
        *,
        permissions: Sequence[str] = ("--allow-net", "--allow-env"),
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        ready_path: str = "/",
    ) -> None:
        super().__init__()
        self._command = [*_run_command(permissions), str(script.resolve()), *args]
        self._env = dict(env or {})
        self._ready_path = ready_path

    @staticmethod
    def locate() -> Path:
        # The wheel puts its binary among the environment's scripts.
        binary = Path(sysconfig.get_path("scripts")) / "deno"
        if not binary.is_file():
            raise MissingError("the package deno", "python -m pip install deno")
        return binary

    def command(self) -> list[str]:
        return self._command

    def popen_options(self) -> dict[str, Any]:
        place = {"HOST": self.host, "PORT": str(self.port), "DATA_DIR": str(self.data_dir)}
        return {"env": _environment({**place, **self._env})}

    def ping(self) -> None:
        """Any answer will do: which status is right is the script's affair."""
        http_call(self.port, "GET", self._ready_path)


def run(
    script: Path,
    *,
    permissions: Sequence[str] = (),
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end and return what it printed."""
    return subprocess.run(
        [*_run_command(permissions), str(script.resolve()), *args],
        env=_environment(env or {}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _run_command(permissions: Sequence[str]) -> list[str]:
    quiet = ["--quiet", "--no-prompt", "--no-config", "--no-lock"]
    return [str(Deno.locate()), "run", *quiet, *permissions]


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    own = {"DENO_DIR": str(TOOLS / "deno"), "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}
    return environment(**{**own, **extra})
