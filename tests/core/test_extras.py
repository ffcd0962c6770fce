"""The extras: what the code says they bring is what the project brings, and how to get it."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import pytest

from penstock.core._errors import (
    EXTRAS,
    NOT_IN_ALL,
    ConfigInvalidError,
    install_line,
    missing,
    require_module,
)
from tests.servers.process import REPO


def test_what_an_extra_brings_is_what_the_project_says() -> None:
    """Requirement by requirement, for this platform; two places that must agree."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    requirements: Any = pytest.importorskip("packaging.requirements")
    with (REPO / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    together = [extra for extra in EXTRAS if extra not in NOT_IN_ALL]
    assert extras.pop("all") == [f"penstock[{','.join(together)}]"]
    found = {}
    for extra, needs in extras.items():
        parsed = map(requirements.Requirement, needs)
        found[extra] = {
            (each.name, frozenset(each.extras), str(each.specifier))
            for each in parsed
            if each.marker is None or each.marker.evaluate()
        }
    told = {}
    for extra, needs in EXTRAS.items():
        parsed = map(requirements.Requirement, needs)
        told[extra] = {(each.name, frozenset(each.extras), str(each.specifier)) for each in parsed}
    assert told == found


def test_the_line_is_for_the_interpreter_that_runs() -> None:
    """Whichever `pip` comes first on the path."""
    words = shlex.split(install_line("redis"))
    assert words == [sys.executable, "-m", "pip", "install", "redis>=5", "hiredis>=3"]


@pytest.mark.parametrize(
    ("executable", "shown"),
    [("/opt/my apps/python", '"/opt/my apps/python" -m'), ("", "python -m"), (None, "python -m")],
)
def test_odd_interpreters_are_quoted_or_named_in_general(
    executable: str | None, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path may have spaces; an embedded interpreter has none."""
    monkeypatch.setattr(sys, "executable", executable)
    assert install_line("edge") == f'{shown} pip install "httpx>=0.27"'


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("redis.asyncio", "redis", "redis"),
        ("asyncpg", "asyncpg", "postgres"),
        ("psycopg", "psycopg", "postgres"),
        ("botocore.config", "boto3", "dynamodb"),
        ("httpx", "httpx", "edge"),
        ("google.protobuf", "protobuf", "server"),
        ("grpc", "grpcio", "grpc"),
        ("yaml", "pyyaml", "server"),
    ],
)
def test_a_module_is_traced_to_its_package_and_extra(module: str, package: str, extra: str) -> None:
    """Their names differ more often than not."""
    told = missing("this", module)
    assert told == f"this needs {package}, which the extra {extra!r} brings: {install_line(extra)}"


def test_a_module_of_no_extra_is_named_alone() -> None:
    """Nothing is promised that no extra keeps."""
    with pytest.raises(ConfigInvalidError, match=r"^this needs nonesuch, which is not installed$"):
        require_module("this", "nonesuch.inner")


def test_a_module_that_is_there_is_returned() -> None:
    """The module asked for, and not its package."""
    import json.decoder

    assert require_module("this", "json.decoder") is json.decoder
