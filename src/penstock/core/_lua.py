"""A strategy in Lua: its source, and how scripts are put together from it.

A strategy has one Lua file, which lies beside its Python file and holds these things in plain Lua::

    raw(key)                      what the key holds, as Redis returns it
    -- Decide.                    a line of its own: what stands above it is all that reading needs
    read(key, p, now)             the state as Lua values, or nil (or false) if there is none
    check(p, state, now, cost)    pure: allowed (1 or 0), limit, remaining, resetAt, retryAfterMs,
                                  and if allowed the new state and its ttl
    write(key, p, state, px)      keeps a state for `px` ms
    -- Give back.                 optional: what stands below it is not needed for a check
    refund(p, state, now, cost, chargedAt)     1, units, 0, 0, 0, and the new state and its ttl
    charge(p, state, now, cost)                as check
    book(p, state, now, cost, maxWaitMs)       as check, with the delay as retryAfterMs
    pause(p, state, now, untilMs)              1, 0, 0, 0, 0, and the new state and its ttl
    -- Only for refund, book.     optional: no other operation needs what stands below it, to the
                                  next line of this kind or the end of the file

All of them may use what `scripts/prelude.lua` defines, and the constants of this package by name.
`p` holds the parameters by their names on the wire. Where a ttl is returned there is something to
write, and a state of nil deletes the key.

From the one file come three scripts: `check` decides for one key and writes, `read` returns the
raw state and never writes, `many` decides for all of its KEYS in order, at one instant. Another one
for each of its operations, `alone`, does that to one key. The script `all`, which decides several
steps as one, is made from the files of all its strategies (`_lua_all.py`). The files in `scripts/`
are what the scripts share.

A server creates the functions of a script again each time the script runs. So most of them are
inlined (`_lua_inlining.py`): those with a single `return`, at the end.

A script starts with the constants that it names, and with its arguments. A `now` of 0 means the
server's clock, any other value is the instant to use. Lua has one kind of number, the double, so
the arithmetic of the oracle carries over as it stands; what must not happen is a detour through
text. `..` and `tostring` keep 14 digits, so numbers become text by `%.17g` (doubles) or `%.0f`
(whole numbers) and nothing else; but whole numbers are handed to a command as they are, since
servers write those out in full, and quicker. Others they may write with fewer digits.

Physical expiry only gives memory back. A strategy's `ttl` says for how long, on the clock of
whoever asks, a state can matter; the key stays longer than that by a margin, in case others ask by
a slower clock::

    px = max(0, now - the server's clock) + ttl + min(max(ttl, MARGIN_MS), MAX_MARGIN_MS)

The first term is for a caller ahead of the server: those who ask by the right time need the state
until then. So no decision changes as long as no caller is behind the server, or behind whoever
wrote, by more than the margin, which is as long as the ttl but a minute at least and a day at most,
and none runs so slowly that it falls behind by as much. No clock that anybody looks after is wrong
by more than a day, and a month's quota need not stay for two. A denial writes nothing, so it does
not prolong a key either.

What a key holds may be somebody else's. To take it for a new key would admit what was counted in
it, and overwrite what it is; so a state is read with care. Another type is WRONGTYPE by itself; a
hash without our fields, or text that is no number of the right size and form, is made the same
kind of error, FOREIGN.

A check or a read touches KEYS[1] and no other key. There is no `#!lua` line: servers before Redis
7 refuse it, and those after do not need it to run a read on a replica.

The reply of `many` is short, because each integer costs something on both sides. `retryAfterMs` is
0 exactly when a request is allowed, so one of the two will do; the limit is said once; and
neighbours that get the same answer, as idle keys do, share it. It is no part of the contract.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from ._errors import ConfigInvalidError
from ._lua_inlining import inlined
from ._lua_script import MARGIN_MS, MAX_MARGIN_MS, LuaScript, constants_of, literal, shared

__all__ = [
    "MARGIN_MS",
    "MAX_MARGIN_MS",
    "NOW_ARGV",
    "OTHER_PERIOD",
    "PERIODS",
    "REPLY",
    "LuaScript",
    "LuaSource",
    "beside",
    "hash_fields",
    "real",
    "signed",
    "whole",
]


NOW_ARGV = 1
"""Where `now` stands among the arguments of a script."""
PERIODS = ("before", "start", "finish", "after")
"""Arguments of a strategy by the calendar, which Lua has not: where the period before the one that
the caller sees starts, that one itself, the next one, and where the next one ends."""
OTHER_PERIOD = "OTHERPERIOD"
"""The error of a script whose clock is outside of these; the instant that it shows is the last word
but for what a server adds."""
REPLY = ("allowed", "limit", "remaining", "resetAt", "retryAfterMs")
"""The five integers that a check replies with."""

# Operations whose argument is a number; that of the others is the id of a slot.
_NUMBERED = frozenset({"refund", "book", "pause"})
_DECIDE = "\n-- Decide.\n"
_SECTION = re.compile(r"\n-- (Give back|Only for [^\n]+)\.\n")
_READ_OR_WRITE = re.compile(r"^local function (?:read|write)\(.*?^end\n", re.DOTALL | re.MULTILINE)
# Operations of `all` that every strategy has, by what makes them of its check.
_LOOKING = {"look": "looking", "try": "trying"}


class LuaSource:
    """The Lua file of a strategy, and what its scripts take and keep.

    `argv` names the arguments of a check in order: `now`, `cost`, and parameters by their names on
    the wire; `PERIODS` among them where the caller works them out from the instant. `constants` are
    parameters that are not passed, where one file has several variants. `state` and `raw` say in
    words what a key holds and what reading it returns. `decode` turns the latter into what
    `Strategy.restore` takes, or None; ValueError if it cannot be one. `beyond_check` names the
    functions that the file has below `-- Give back.` `over` is another file, to which this one is
    an addition: it has only `raw`, `read` and `write`, which replace those of the other file.
    """

    def __init__(
        self,
        name: str,
        file: str,
        *,
        strategy: str = "",
        argv: tuple[str, ...],
        state: str,
        raw: str,
        decode: Callable[[Any], Any],
        constants: Mapping[str, Any] | None = None,
        beyond_check: tuple[str, ...] = (),
        over: str = "",
    ) -> None:
        self.name = name
        self.file = file
        self._over = over
        self.strategy: str = strategy or name
        self.argv = argv
        self.state = state
        self.raw = raw
        self.decode = decode
        self.operations: tuple[str, ...] = ("check", *beyond_check)
        self._constants = dict(constants or {})
        self._alone: dict[tuple[str, bool], LuaScript] = {}
        if argv[:NOW_ARGV] != ("now",) or "cost" not in argv:
            raise ConfigInvalidError(f"argv of {name} must begin with 'now' and hold 'cost'")
        self.by_periods: bool = not set(PERIODS).isdisjoint(argv)
        if self.by_periods and argv[-len(PERIODS) - 1 :] != (*PERIODS, "cost"):
            raise ConfigInvalidError(
                f"argv of {name} must end with {', '.join(PERIODS)} and cost, in that order"
            )

    @cached_property
    def check(self) -> LuaScript:
        """Decides for one key and writes."""
        return self._script("check", self._text_for({"check"}), shared("check"))

    @cached_property
    def many(self) -> LuaScript:
        """Decides for all of its keys, in order, at one instant."""
        return self._script("many", self._text_for({"check"}), shared("many"))

    @cached_property
    def read(self) -> LuaScript:
        """Returns what a key holds, and never writes."""
        reading, _, _ = self.text.partition(_DECIDE)
        return self._script("read", reading, shared("read"))

    def alone(self, operation: str, *, shadow: bool) -> LuaScript:
        """Does an operation to one key, as a shadow or not: a shadow keeps what a denial leaves."""
        script = self._alone.get((operation, shadow))
        if script is None:
            script = self._alone[operation, shadow] = self._made_alone(operation, shadow)
        return script

    def _made_alone(self, operation: str, shadow: bool) -> LuaScript:
        place = len(self.argv) + 1
        argument = f"local argument = ARGV[{place}]\n"
        if operation in _NUMBERED:
            argument = f"local argument = ARGV[{place}] + 0\n"
        elif operation == "renew":
            argument = (
                "local argument = {}\n"
                f"for place = {place}, #ARGV do argument[#argument + 1] = ARGV[place] end\n"
            )
        if operation == "pause":
            argument += "cost = argument\n"
        template = shared("alone").replace("operation(", f"{operation}(")
        argument += f"local isShadow = {literal(shadow)}\n"
        return self._script(f"{operation}.alone", argument, self._text_for({operation}), template)

    def functions(self, operations: Collection[str], number: int) -> tuple[str, str]:
        """For the script `all`: the functions of these operations, with a number in their names
        that is different for each file. The first text must stay in a block of its own; the second
        can be inlined together with those of other files."""
        own = [each for each in sorted(operations) if each in self.operations]
        looks = [each for each in sorted(operations) if each not in self.operations]
        roots = ["read", "write", *own]
        if looks and "check" not in roots:
            roots.append("check")
        text = inlined(f"{shared('prelude')}\n{self._text_for(roots[2:])}", roots)
        apart = ""
        if _defines_only(roots, text):
            for name in roots:
                text = text.replace(f"local function {name}(", f"local function {name}{number}(")
        else:
            names = ", ".join([f"{name}{number}" for name in roots])
            apart = f"local {names}\ndo\n{text}{names} = {', '.join(roots)}\nend\n"
            text = ""
        for each in looks:
            text += f"local {each}{number} = {_LOOKING[each]}(check{number})\n"
        return apart, text

    def step(self, operation: str, number: int) -> str:
        """For the script `all`: the code that reads the parameters of a step of this operation."""
        first = 2 if operation == "check" else 3
        given = [name for name in self.argv if name not in ("now", "cost")]
        fields = {name: f"steps[at + {place}]" for place, name in enumerate(given, first)}
        fields.update({name: literal(value) for name, value in self._constants.items()})
        built = ", ".join(f"{name} = {value}" for name, value in fields.items())
        text = f"    p, FOREIGN = {{{built}}}, '{self._foreign()}'\n"
        if operation != "check":
            text += "    argument = steps[at + 2]\n"
        if operation == "pause":
            text += "    cost = argument\n"
        return f"{text}    at = at + {first + len(given)}\n"

    def _text_for(self, operations: Collection[str]) -> str:
        """What some operations need of the file."""
        text, *sections = _SECTION.split(self.text)
        for mark, section in zip(sections[::2], sections[1::2], strict=True):
            if not self._named_by(mark).isdisjoint(operations):
                text += f"\n{section}"
        return f"{text}\n"

    def _named_by(self, mark: str) -> set[str]:
        """The operations that need what stands below a line."""
        if mark == "Give back":
            return {*self.operations[1:]}
        names = {*mark.removeprefix("Only for ").split(", ")}
        if not names <= {*self.operations}:
            raise ConfigInvalidError(
                f"{self.file} has a line '-- {mark}.'; it must name some of "
                f"{', '.join(self.operations)}"
            )
        return names

    @cached_property
    def text(self) -> str:
        """What the file holds, and what stays of the one that it is an addition to."""
        text = _text_of(self.file)
        if self._over:
            _, _, rest = _text_of(self._over).partition(_DECIDE)
            text += "\n" + _READ_OR_WRITE.sub("", rest)
        return text

    def _script(self, role: str, *parts: str) -> LuaScript:
        keys, arguments, reply = {
            "check": ("1 key", self._places(), ", ".join(REPLY)),
            "many": (
                "the keys, in order",
                self._places(),
                "limit, then per run of equal answers: length, remaining, resetAt, retryAfterMs",
            ),
            "read": ("1 key", "none", self.raw),
        }.get(role, ("1 key", f"{self._places()}, argument", f"now, {', '.join(REPLY)}"))
        name = f"{self.name}.{role}"
        head = (
            f"-- {name}\n-- KEYS  {keys}\n-- ARGV  {arguments}\n"
            f"-- reply {reply}\n-- state {self.state}\n"
        )
        if role != "read":
            parts = (self._arguments(), shared("clock"), *parts)
        text = inlined("\n".join((shared("prelude"), *parts)))
        return LuaScript(name, head + constants_of(text, FOREIGN=self._foreign()) + text)

    def _places(self) -> str:
        return ", ".join(f"{place} {name}" for place, name in enumerate(self.argv, 1))

    def _foreign(self) -> str:
        return f"WRONGTYPE not the state of a {self.strategy}"

    def _arguments(self) -> str:
        # A sum makes a number of a text, for less than `tonumber`.
        given = {name: f"ARGV[{place}] + 0" for place, name in enumerate(self.argv, NOW_ARGV)}
        now, cost = given.pop("now"), given.pop("cost")
        fixed = {name: literal(value) for name, value in self._constants.items()}
        fields = ", ".join(f"{name} = {value}" for name, value in {**given, **fixed}.items())
        return f"local now, cost = {now}, {cost}\nlocal p = {{{fields}}}\n"

    def __repr__(self) -> str:
        return f"<LuaSource {self.name}>"


def _text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if _DECIDE not in text:
        raise ConfigInvalidError(f"{path} has no line '{_DECIDE.strip()}'")
    return text


def _defines_only(roots: Collection[str], text: str) -> bool:
    """Whether a text has nothing but these functions, of which none calls another."""
    lines = text.splitlines()
    begun = [line for line in lines if line.startswith("local ")]
    return len(begun) == len(roots) and all(text.count(f"{name}(") == 1 for name in roots)


def beside(module_file: str, suffix: str = "") -> str:
    """The Lua file that belongs to a Python file: `bucket.lua` for `bucket.py` or `_bucket.py`."""
    folder, name = os.path.split(module_file)
    return os.path.join(folder, os.path.splitext(name)[0].lstrip("_") + suffix + ".lua")


def hash_fields(raw: Any) -> tuple[Any, Any] | None:
    """What the read of a hash of two fields returned, or None if there is none."""
    first, second = raw
    return None if first is None and second is None else (first, second)


def whole(raw: Any) -> int:
    """A whole number from the text that a script wrote; ValueError from any other text."""
    return int(_matching(r"[0-9]+", raw))


def real(raw: Any) -> float:
    """The same for a number that may have a fraction."""
    return float(_matching(r"[0-9]+\.?[0-9]*(e-?[0-9]+)?", raw))


def signed(raw: Any) -> float:
    """The same for one that may be below zero."""
    return float(_matching(r"-?[0-9]+\.?[0-9]*(e-?[0-9]+)?", raw))


def _matching(form: str, raw: Any) -> str:
    text = raw.decode() if isinstance(raw, bytes) else raw
    if not isinstance(text, str) or not re.fullmatch(form, text):
        raise ValueError(f"{text!r:.80}, where a number should be")
    return text
