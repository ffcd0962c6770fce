"""The script `all`, which decides several steps as one, each of some strategy and some operation.

There is one script for each set of kinds of step, with only the code that these kinds need. It has
one branch per kind of step, and one per file for writing.

The steps are one argument, a flat array in JSON: a server parses that in half the time of as many
separate arguments. It contains the kind of a step as its number among the kinds of the script. None
of this is part of the contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ._lua_inlining import inlined
from ._lua_script import LuaScript, constants_of, literal, shared

if TYPE_CHECKING:
    from ._lua import LuaSource

__all__ = ["StepKind", "script_of_all"]


_ALL_HEAD = """\
-- all
-- KEYS  one per step
-- ARGV  1 now; 2 a flat array in JSON, which has per step the number of its kind, the cost, an
--       argument unless it is a check, and the parameters; of a record that the caller has decided
--       on: its number, whether it admits, 1 or 0, and for how long it is kept; then for each of
--       those the record that it was decided on, and the new one
-- reply now, then per step: five integers; now alone if a record was another one
-- kinds of step:
"""
# The branch of a record that the caller has decided on.
_RECORD = """\
    p, FOREIGN = steps[at + 2], 'WRONGTYPE not a record'
    argument, recordAt, at = recordAt, recordAt + 2, at + 3
"""
_STEP = "  -- One branch for each kind of step.\n"
_WRITE = "    -- One branch for each kind of state.\n"
_STAND = "    -- One branch for each kind of state that is looked at.\n"
# The operations that are answered with what is there, if another step denies the request.
_STANDING = frozenset({"check", "look", "book", "take", "queue_up"})
_ANSWER = "allowed, limit, remaining, resetAt, retryAfterMs, state, ttl"


class StepKind(NamedTuple):
    """What the script `all` does in a step: an operation of a strategy, as a shadow or not. Without
    a strategy, it writes a record that the caller has decided on."""

    source: LuaSource | None
    operation: str
    shadow: bool

    @property
    def stands(self) -> bool:
        """Whether it is answered with what is there, if another step denies the request."""
        return self.operation in _STANDING

    @property
    def name(self) -> str:
        """In words, for the head of a script."""
        what = self.operation if self.source is None else f"{self.source.name}.{self.operation}"
        return f"{what}, a shadow" if self.shadow else what


@lru_cache(maxsize=256)
def script_of_all(kinds: frozenset[StepKind]) -> tuple[LuaScript, Mapping[StepKind, int]]:
    """The script that decides steps of these kinds as one, all or nothing; and the number of each
    kind in it."""
    numbers = {kind: place for place, kind in enumerate(sorted(kinds, key=_name), 1)}
    by_file: dict[str, list[StepKind]] = {}
    for kind in numbers:
        by_file.setdefault(kind.source.file if kind.source else "", []).append(kind)
    files = {file: number for number, file in enumerate(by_file, 1)}
    functions = [_functions(several, files[file]) for file, several in by_file.items()]
    apart = "".join([text for text, _ in functions])
    together = "".join([text for _, text in functions])
    told = "".join([f"--   {number} {kind.name}\n" for kind, number in numbers.items()])
    standing = {
        file: number for file, number in files.items() if any(kind.stands for kind in by_file[file])
    }
    steps = shared("all").replace(_STEP, _steps(numbers, files)).replace(_WRITE, _writes(files))
    steps = steps.replace(_STAND, _stands(standing))
    joined = "\n".join((shared("clock"), shared("look"), together, steps))
    # Functions may use `now`: some states hold the instant at which they were written.
    text = f"local FOREIGN\nlocal now = ARGV[1] + 0\n{apart}{inlined(joined)}"
    return LuaScript("all", f"{_ALL_HEAD}{told}{constants_of(text)}{text}"), numbers


def _name(kind: StepKind) -> str:
    return kind.name


def _functions(kinds: Sequence[StepKind], number: int) -> tuple[str, str]:
    """The Lua functions for kinds of step of one file, as `LuaSource.functions` returns them."""
    source = kinds[0].source
    if source is None:
        return "", shared("record").replace("Record(", f"{number}(")
    operations = {kind.operation for kind in kinds}
    if any(kind.stands for kind in kinds):
        operations.add("check")
    return source.functions(operations, number)


def _steps(numbers: Mapping[StepKind, int], files: Mapping[str, int]) -> str:
    """The branches that decide: one per kind of step."""
    branches = []
    for kind, number in numbers.items():
        source, operation, shadow = kind
        file = files[source.file if source else ""]
        # A look of a cost asks whether that cost is there.
        stands = "cost == 0" if operation == "look" else literal(kind.stands)
        branches.append(
            f"if kind == {number} then\n"
            f"{source.step(operation, file) if source else _RECORD}"
            f"    file, isShadow, stands = {file}, {literal(shadow)}, {stands}\n"
            "    if not home then\n"
            f"      stored = read{file}(key, p, now)\n"
            f"    elseif files[home] ~= {file} then\n"
            "      error(FOREIGN, 0)\n"
            "    end\n"
            f"    {_ANSWER} = {operation}{file}(p, stored, now, cost, argument)\n"
        )
    return f"  {'  else'.join(branches)}  end\n"


def _stands(files: Mapping[str, int]) -> str:
    """The branches that look at what is there: one per file with such steps."""
    branches = [
        f"if file == {file} then\n"
        f"      local stored = read{file}(key, p, now)\n"
        f"      allowed, limit, remaining, resetAt = check{file}(p, stored, now, 0)\n"
        for file in files.values()
    ]
    return f"    {'    else'.join(branches)}    end\n" if branches else ""


def _writes(files: Mapping[str, int]) -> str:
    """The branches that write: one per file."""
    branches = [
        f"if file == {file} then\n      write{file}(key, p, state, px)\n" for file in files.values()
    ]
    return f"    {'    else'.join(branches)}    end\n"
