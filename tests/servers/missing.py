"""What a fixture asks before it starts a backend.

A developer without a backend should see a skipped test and the command that would run it. In CI a
skip would be a hole nobody looks at, so there a missing backend fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import actionlint

from .deno import Deno
from .dynamodb_local import DynamoDBLocal
from .envoy import Envoy
from .node import node_binary, npm_package
from .postgres import Postgres
from .process import ARQ, MissingError
from .redis import Redis7, Redis8, Valkey


def _on_node(package: str) -> Callable[[], Path]:
    def locate() -> Path:
        node_binary()
        return npm_package(package)

    return locate


def _actionlint() -> Path:
    if not actionlint.installed():
        raise MissingError(f"actionlint {actionlint.VERSION}", "python -m tools.actionlint")
    return actionlint.BINARY


def _arq() -> Path:
    if not ARQ.is_dir():
        raise MissingError("arq", "python -m tests.servers.setup")
    return ARQ


LOCATE: dict[str, Callable[[], Path]] = {
    "actionlint": _actionlint,
    "arq": _arq,
    "deno": Deno.locate,
    "dynalite": _on_node("dynalite"),
    "dynamodb-local": DynamoDBLocal.locate,
    "envoy": Envoy.locate,
    "grpc-js": _on_node("@grpc/grpc-js"),
    "miniflare": _on_node("miniflare"),
    "node": node_binary,
    "postgres": Postgres.locate,
    "pyright": _on_node("pyright"),
    "redis7": Redis7.locate,
    "redis8": Redis8.locate,
    "valkey": Valkey.locate,
}
# Redis 7, Java and Maven come from the system's packages, which not every CI machine has;
# actionlint is built by those who change a workflow. The wheel of Envoy is for Linux.
OPTIONAL = frozenset({"actionlint", "dynamodb-local", "redis7"}) | (
    frozenset() if sys.platform == "linux" else {"envoy"}
)


def require(name: str) -> None:
    """Return when the backend is installed; else fail the test in CI and skip it elsewhere."""
    try:
        LOCATE[name]()
    except MissingError as missing:
        text = f"{name}: {missing}"
        if os.environ.get("CI") == "true" and name not in OPTIONAL:
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
