"""From exceptions to problems, in one place. Only a fault of the service itself is logged."""

from __future__ import annotations

import logging

from ...core.errors import (
    ConfigInvalidError,
    QueueFullError,
    StoreUnavailableError,
    UnsupportedError,
)
from ..core import UnknownPolicyError
from .problem import Problem, ProblemError

__all__ = ["SOON", "problem_of"]

SOON = ("Retry-After: 1",)

_log = logging.getLogger("penstock.http")


def problem_of(error: BaseException) -> Problem:
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, UnknownPolicyError):
        return Problem("unknown_policy", str(error))
    if isinstance(error, ConfigInvalidError):
        return Problem("config_invalid", str(error))
    if isinstance(error, UnsupportedError):
        return Problem("not_implemented", str(error))
    if isinstance(error, StoreUnavailableError):
        # The text names the store's address, which is nothing for clients.
        detail = "the store is full" if error.reason == "full" else "the store did not answer"
        return Problem("store_unavailable", detail, SOON, error.reason)
    if isinstance(error, QueueFullError):
        return Problem("overloaded", str(error), SOON)
    _log.error("a request failed", exc_info=error)
    return Problem("internal_error", "the service failed; its log says more")
