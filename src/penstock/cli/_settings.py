"""The settings of a command: from a flag, else from the environment, else the default.

Every flag that takes a value has a variable: `PENSTOCK_HTTP_PORT` for `--http-port`. Secrets should
not be on the command line, which all users of a machine can read: they may be in a variable, or in
a file that a flag or variable names. A flag takes precedence over the environment; two ways to give
a setting on the same level are an error. So is an empty variable, which may be a mistake, and one
whose name is misspelt.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ..core._errors import ConfigInvalidError
from ..core._validation import reject, shown

__all__ = ["PREFIX", "Settings", "add_import", "imports_of"]


PREFIX = "PENSTOCK_"

# Variables that are not settings of a command; Kubernetes sets PORT for a service of this name.
_OTHERS = frozenset({"KV_PATH", "NO_NATIVE", "PORT", "PURE"})
_NEAR = 0.75
_KINDS = {int: "a whole number", float: "a number"}


@dataclass(frozen=True, slots=True)
class _Setting:
    """A way to give a setting. One without a `flag` has a variable only."""

    dest: str
    flag: str | None = None
    type: Callable[[str], Any] | None = None
    choices: tuple[str, ...] | None = None
    preset: Any = None

    @property
    def variable(self) -> str:
        return PREFIX + self.dest.upper()

    def read(self, text: str) -> Any:
        """The value of the variable."""
        if not text.strip():
            reject(f"{self.variable} is empty; give it a value, or unset it")
        if self.choices is not None and text not in self.choices:
            reject(f"{self.variable} must be {' or '.join(self.choices)}, not {shown(text)}")
        try:
            return text if self.type is None else self.type(text)
        except ValueError:
            kind = _KINDS.get(self.type, "well-formed")  # type: ignore[call-overload]
            reject(f"{self.variable} must be {kind}, not {shown(text)}{_of_kubernetes(text)}")


def _of_kubernetes(text: str) -> str:
    if not text.startswith("tcp://"):
        return ""
    return "; Kubernetes sets it for a service of that name: use enableServiceLinks: false"


class Settings:
    """The settings of one command: `add` declares them, `resolve` finds their values."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._groups: list[list[_Setting]] = []
        self._switches: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        parser.set_defaults(settings=self)

    def add(self, *names: str, **options: Any) -> None:
        """As `add_argument`. A flag that takes a value gets a variable as well."""
        action = self._parser.add_argument(*names, **options)
        if action.nargs == 0:
            self._switches[PREFIX + action.dest.upper()] = names[-1]
            return
        choices = None if action.choices is None else tuple(action.choices)
        kind = action.type if callable(action.type) else None
        self._groups.append([_Setting(action.dest, names[-1], kind, choices, action.default)])
        # None says that the flag was not given; the help still shows the default.
        action.help = (action.help or "").replace("%(default)s", str(action.default))
        action.default = None

    def exclude(self, *dests: str, variables: tuple[str, ...] = ()) -> None:
        """Allow only one of these. `variables` are further ones that have no flag."""
        group = [each for group in self._groups for each in group if each.dest in dests]
        self._groups = [each for each in self._groups if each[0].dest not in dests]
        self._groups.append([*group, *map(_Setting, variables)])

    @property
    def variables(self) -> list[str]:
        """All variables that are read."""
        return [each.variable for group in self._groups for each in group]

    def resolve(self, args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> None:
        """Set the values in `args`."""
        for group in self._groups:
            given = [each for each in group if getattr(args, each.dest, None) is not None]
            found = given or [each for each in group if each.variable in environ]
            if len(found) > 1:
                ways = [(each.flag if given else each.variable) for each in found]
                reject(f"{' and '.join(map(str, ways))} exclude each other; keep one of them")
            for each in group:
                if each in given:
                    continue
                value = each.read(environ[each.variable]) if each in found else None
                if value is not None:
                    self._sources[each.dest] = each.variable
                elif not found:
                    value = each.preset
                setattr(args, each.dest, value)

    @property
    def sources(self) -> Mapping[str, str]:
        """The variable of each setting that came from the environment."""
        return self._sources

    def explained(self, error: ConfigInvalidError) -> ConfigInvalidError:
        """The error, with the variable of each flag in its message that came from one."""
        flags = {each.dest: each.flag for group in self._groups for each in group}
        stood = [
            f"{flags[dest]} is {variable} here"
            for dest, variable in self._sources.items()
            if flags[dest] is not None and str(flags[dest]) in str(error)
        ]
        return ConfigInvalidError(f"{error} ({', '.join(stood)})") if stood else error

    def refuse_near_misses(self, environ: Mapping[str, str] = os.environ) -> None:
        """Reject variables that would be ignored: misspelt ones, and those of switches. For a
        command that has all settings."""
        known = {variable.removeprefix(PREFIX) for variable in self.variables}
        for name in environ:
            if name in self._switches:
                reject(f"{name} has no effect; use {self._switches[name]} on the command line")
            tail = name.removeprefix(PREFIX)
            if name.startswith(PREFIX) and tail not in known | _OTHERS:
                near = get_close_matches(tail, known, n=1, cutoff=_NEAR)
                if near:
                    reject(f"{name} is not a setting; did you mean {PREFIX}{near[0]}?")


def add_import(settings: Settings) -> None:
    """`--import`, which may be repeated; the variable separates names by commas."""
    settings.add(
        "--import",
        metavar="MODULE",
        action="extend",
        type=lambda names: [name.strip() for name in names.split(",")],
        default=[],
        help="a module that registers strategies of your own; may be given several times",
    )


def imports_of(args: argparse.Namespace) -> tuple[str, ...]:
    """The modules to import, in order."""
    return tuple(getattr(args, "import"))
