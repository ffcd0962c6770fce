"""`penstock version`: the version, and whether the native path is on."""

from __future__ import annotations

import argparse
import platform
import sys

from ..core import native

__all__ = ["SUMMARY", "configure", "describe", "run"]


SUMMARY = "print the version"


def configure(parser: argparse.ArgumentParser) -> None:
    """There is nothing to declare."""


def run(args: argparse.Namespace) -> int:
    """Print one line."""
    print(describe())
    return 0


def describe() -> str:
    """The line, for bug reports."""
    # Not imported, because modules of the package must not import its root.
    version = sys.modules[__name__.partition(".")[0]].__version__
    path = "interpreted" if native is None else "native"
    return f"penstock {version}, {path} path, Python {platform.python_version()}"
