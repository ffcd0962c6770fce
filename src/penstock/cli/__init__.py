"""The command line: `penstock COMMAND ...`, one command per module.

A command is a module with a `SUMMARY`, a `configure(parser)` and a `run(args)` that returns the
exit code. It is imported when it is used, so that one does not need the extras of another.

Exit codes: 0 for success, 1 for an operational failure (a store that is away), 2 for a mistake of
the caller, with one line on standard error; `check` adds 3 for a denial. A traceback is a bug.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from ..core._errors import ConfigInvalidError, PenstockError, UnsupportedError, missing
from ._version import describe

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "serve": "._serve",
    "check-config": "._check_config",
    "check": "._check",
    "load": "._load",
    "bench": "._bench",
    "doctor": "._doctor",
    "store": "._store",
    "version": "._version",
}
"""The module of each command."""


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        args, unknown = _parser(words).parse_known_args(words)
        if unknown:
            args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        code: int = args.run(args)
    except (ConfigInvalidError, UnsupportedError) as error:
        return _complain(error, 2)
    except (PenstockError, OSError) as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return 130
    return code


def _complain(error: Exception, code: int) -> int:
    print(f"penstock: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """A parser with the arguments of the given command only."""
    parser = _Parser(prog="penstock", description="Exact rate limiting.")
    parser.add_argument("--version", action="version", version=describe())
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    asked = words[0] if words else ""
    for name in COMMANDS:
        if asked in COMMANDS and name != asked:
            continue
        module = _import_command(name, required=name == asked)
        summary = getattr(module, "SUMMARY", "not installed")
        sentence = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, help=summary, description=sentence)
        if module is not None:
            module.configure(command)
            command.set_defaults(run=module.run, parser=command)
    return parser


def _import_command(name: str, *, required: bool) -> ModuleType | None:
    try:
        return import_module(COMMANDS[name], __package__)
    except ImportError as error:
        if not required:
            return None
        raise ConfigInvalidError(missing(f"`penstock {name}`", error.name or name)) from error
