"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Run"]

Run = Callable[..., tuple[int, str, str]]
"""Runs a command line: its exit code, and what it wrote to stdout and stderr."""
