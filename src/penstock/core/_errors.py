"""Every exception Penstock raises, each with a stable `code`.

A denial is not an error: it is a `Decision`. Errors are operational faults (a store that does not
answer) and mistakes of the caller (a cost of zero). Programs branch on `code`, which is never
renamed; the message is for people, and says what was wrong and what would be right.

The message about a missing package is written here alone (`missing`). Its install line names the
packages of an extra rather than the extra, so that it is right however Penstock was installed, and
the interpreter, so that they are installed for this one.
"""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from ._decision import Decision
    from ._verdict import Verdict


__all__ = [
    "EXTRAS",
    "NOT_IN_ALL",
    "ConfigInvalidError",
    "OverloadedError",
    "PenstockError",
    "QueueFullError",
    "RateLimitExceededError",
    "StoreUnavailableError",
    "TooLargeError",
    "UnsupportedError",
    "distribution_of",
    "install_line",
    "missing",
    "outage_reason",
    "require_module",
]


Reason: TypeAlias = Literal["away", "full"]


class PenstockError(Exception):
    """The base of all exceptions that Penstock raises. `code` is a stable string to branch on."""

    code: ClassVar[str] = "penstock_error"


class ConfigInvalidError(PenstockError, ValueError):
    """A parameter, key, cost or policy is invalid."""

    code = "config_invalid"


class TooLargeError(ConfigInvalidError):
    """One call asks for more than a store may be kept busy with. Nothing was sent to the store."""


class StoreUnavailableError(PenstockError):
    """The store did not answer, or not in time; the message says whether it may have acted.

    `reason` is `"full"` if the store answers but has no room to write, and `"away"` for everything
    else.
    """

    code = "store_unavailable"

    def __init__(self, *args: object, reason: Reason = "away") -> None:
        super().__init__(*args)
        self.reason: Reason = reason


class OverloadedError(StoreUnavailableError):
    """The store works, but this process asks for more than it answers in time: the call waited
    behind other calls until its deadline. That is not an outage, so no fail mode applies, and
    nothing is admitted; retry later, or ask for less at once."""

    code = "overloaded"


def outage_reason(error: BaseException) -> Reason:
    """The `reason` of an error. A MemoryError of this process counts as full."""
    if isinstance(error, StoreUnavailableError):
        return error.reason
    return "full" if isinstance(error, MemoryError) else "away"


class UnsupportedError(PenstockError):
    """This store, strategy or policy lacks the operation; the message names one that has it."""

    code = "not_implemented"


class QueueFullError(PenstockError):
    """`acquire` found `max_waiters` callers already waiting for the key."""

    code = "queue_full"


class RateLimitExceededError(PenstockError):
    """`acquire` was not admitted within its timeout. `decision` is the last denial, `verdict` that
    of several limits; None if there was one."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, decision: Decision, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.decision = decision
        self.verdict = verdict

    def __reduce__(self) -> tuple[type[RateLimitExceededError], tuple[Any, ...]]:
        return type(self), (str(self), self.decision, self.verdict)


# uvloop is not built for other interpreters and systems; there asyncio's own loop is used.
_HAS_UVLOOP = platform.python_implementation() == "CPython" and sys.platform in ("linux", "darwin")

# As in pyproject.toml; a test compares them.
EXTRAS: dict[str, tuple[str, ...]] = {
    "redis": ("redis>=5", "hiredis>=3"),
    "postgres": ("psycopg[binary,pool]>=3.2", "asyncpg>=0.30"),
    "dynamodb": ("boto3>=1.34", "aiobotocore>=2.13"),
    "edge": ("httpx>=0.27",),
    "server": (
        "protobuf>=5.26",
        "pyyaml>=6",
        *(("uvloop>=0.18",) if _HAS_UVLOOP else ()),
    ),
    "fastapi": ("fastapi>=0.115.3",),
    "flask": ("flask>=3",),
    "quart": ("quart>=0.20",),
    "django": ("django>=4.2",),
    "drf": ("djangorestframework>=3.15",),
    "litestar": ("litestar>=2.13",),
    "httpx": ("httpx>=0.27",),
    "requests": ("requests>=2.32",),
    "urllib3": ("urllib3>=2",),
    "aiohttp": ("aiohttp>=3.12",),
    "celery": ("celery>=5.4",),
    "dramatiq": ("dramatiq>=1.17",),
    "arq": ("arq>=0.26",),
    "grpc": ("grpcio>=1.81",),
    "client": ("httpx>=0.27", "grpcio>=1.81", "protobuf>=5.26"),
}
"""Extra to requirements, for the platform at hand."""

NOT_IN_ALL = ("arq",)
"""Extras that `all` leaves out: arq needs a redis-py that is older than the others take."""

# Modules whose distribution has another name.
_DISTRIBUTIONS = {
    "botocore": "boto3",
    "google": "protobuf",
    "grpc": "grpcio",
    "rest_framework": "djangorestframework",
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
    """The shell command that installs the packages of an extra."""
    python = sys.executable or "python"
    quoted = [f'"{requirement}"' for requirement in EXTRAS[extra]]
    return " ".join([f'"{python}"' if " " in python else python, "-m pip install", *quoted])


def missing(what: str, module: str, extra: str | None = None) -> str:
    """The message for `what`, which needs `module`. Names `extra`, by default the first extra that
    has the module."""
    extra, name = extra or _extra_of(module), _distribution(module)
    if extra is None:
        return f"{what} needs {name}, which is not installed"
    return f"{what} needs {name}, which the extra {extra!r} brings: {install_line(extra)}"


def require_module(what: str, module: str, extra: str | None = None) -> Any:
    """Import a module, or raise `config_invalid` with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigInvalidError(missing(what, module, extra)) from error


def _distribution(module: str) -> str:
    top = module.partition(".")[0]
    return _DISTRIBUTIONS.get(top, top)
