"""Strategies of a user's own, known in every process that reads policies.

A command imports the modules that it is told to, which call `penstock.register`. Its workers import
them again. A process that only parses is given the classes by name, since what registered them may
be a program that has done more than to import a module.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from types import TracebackType
from typing import Any

from ..core.errors import PenstockError
from ..core.strategy import register, registered
from ..core.validation import reject

__all__ = ["ClassName", "import_modules", "register_named", "registered_names"]

ClassName = tuple[str, str]
"""The module and the qualified name of a class."""


def import_modules(names: Iterable[str]) -> None:
    """Import them, those in the working folder too; raises `config_invalid` at the first that
    cannot be had."""
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            reject(f"--import {name!r} is not the name of a module, such as shop.limits")
        # As `python -m` finds them, which a command that was installed does not.
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        try:
            import_module(name)
        except PenstockError as error:
            reject(f"--import {name}: {error}")
        except (Exception, SystemExit) as error:
            if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                reject(
                    f"--import {name}: there is no module {error.name}, neither in {here} nor "
                    "where Python looks for modules; see PYTHONPATH"
                )
            told = f"{type(error).__name__}: {error}{_place(error.__traceback__)}"
            reject(f"--import {name} cannot be imported: {told}")


def _place(trace: TracebackType | None) -> str:
    """Where in the user's code it was raised, if it was."""
    frames = [
        frame
        for frame in traceback.extract_tb(trace)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def registered_names() -> list[ClassName] | None:
    """By what names another process finds the registered classes again; None if it would not find
    all of them."""
    names = [(cls.__module__, cls.__qualname__) for cls in registered()]
    for cls, (module, qualname) in zip(registered(), names, strict=True):
        loaded = None if module == "__main__" else sys.modules.get(module)
        if _member(loaded, qualname) is not cls:
            return None
    return names


def register_named(names: Iterable[ClassName]) -> None:
    """Register what another process has registered; raises whatever keeps it from being found."""
    for module, qualname in names:
        register(_member(import_module(module), qualname))


def _member(module: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        module = getattr(module, part, None)
    return module
