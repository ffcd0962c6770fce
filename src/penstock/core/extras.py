"""The extras: what each one brings, and the only place that words how to get it.

The line names the packages of the extra, and not the extra itself, so that it is right for a
package that came from a clone, a wheel or a mirror as well as from an index; it names the
interpreter, so that they arrive where this process will look for them.
"""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from typing import Any

from .errors import ConfigInvalidError

__all__ = ["EXTRAS", "distribution_of", "install_line", "missing", "require_module"]

# uvloop has no build for other interpreters and systems; without it asyncio's own loop serves.
_HAS_UVLOOP = platform.python_implementation() == "CPython" and sys.platform in ("linux", "darwin")

# As in pyproject.toml; a test compares them.
EXTRAS: dict[str, tuple[str, ...]] = {
    "redis": ("redis>=5", "hiredis>=3"),
    "postgres": ("psycopg[binary,pool]>=3.2", "asyncpg>=0.30"),
    "dynamodb": ("boto3>=1.34", "aiobotocore>=2.13"),
    "edge": ("httpx>=0.27",),
    "server": (
        "grpcio>=1.81",
        "grpcio-health-checking>=1.66",
        "grpcio-reflection>=1.66",
        "protobuf>=5.26",
        "pyyaml>=6",
        *(("uvloop>=0.18",) if _HAS_UVLOOP else ()),
    ),
}
"""Extra to requirements, for the platform at hand."""

# Modules whose distribution has another name.
_DISTRIBUTIONS = {
    "botocore": "boto3",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "yaml": "pyyaml",
}


def distribution_of(requirement: str) -> str:
    """`psycopg` for `psycopg[binary,pool]>=3.2`."""
    return requirement.partition(">=")[0].partition("[")[0]


def _extra_of(module: str) -> str | None:
    """The extra that brings a module; None if none does."""
    wanted = _distribution(module)
    for extra, requirements in EXTRAS.items():
        if wanted in map(distribution_of, requirements):
            return extra
    return None


def install_line(extra: str) -> str:
    """A line for a shell that installs what the extra brings."""
    python = sys.executable or "python"
    quoted = [f'"{requirement}"' for requirement in EXTRAS[extra]]
    return " ".join([f'"{python}"' if " " in python else python, "-m pip install", *quoted])


def missing(what: str, module: str) -> str:
    """The text for whoever used `what` without the extra that brings `module`."""
    extra, name = _extra_of(module), _distribution(module)
    if extra is None:
        return f"{what} needs {name}, which is not installed"
    return f"{what} needs {name}, which the extra {extra!r} brings: {install_line(extra)}"


def require_module(what: str, module: str) -> Any:
    """The module, or `config_invalid` with the line that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigInvalidError(missing(what, module)) from error


def _distribution(module: str) -> str:
    top = module.partition(".")[0]
    return _DISTRIBUTIONS.get(top, top)
