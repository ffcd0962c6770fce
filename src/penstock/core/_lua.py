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
for each of its operations, `alone`, does that to one key. And `all` decides several steps as one,
each of some strategy and some operation: there is one script for each set of these, with nothing in
it that they do not need. The files in `scripts/` are what the scripts share.

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

The steps of `all` are one argument, a flat array in JSON: a server reads that in half of the time
that it takes for as many arguments and their numbers. What is done is not in it by name, but by its
number among the kinds of step that the script is for. Nor is that part of the contract.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ._errors import ConfigInvalidError
from ._lua_inlining import inlined, names_in
from ._validation import MAX_INSTANT_MS, MAX_SAFE, MAX_SPAN_MS, MAX_STORED_MS

__all__ = [
    "MARGIN_MS",
    "MAX_MARGIN_MS",
    "NOW_ARGV",
    "OTHER_PERIOD",
    "PERIODS",
    "REPLY",
    "LuaScript",
    "LuaSource",
    "StepKind",
    "beside",
    "hash_fields",
    "real",
    "script_of_all",
    "signed",
    "whole",
]


MARGIN_MS = 60_000
"""How much longer than it matters a state is kept, at least."""
MAX_MARGIN_MS = 86_400_000
"""And at most."""
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

# What a script may name; the last three are forms of numbers, for the prelude's `number`.
_CONSTANTS = {
    "MARGIN_MS": MARGIN_MS,
    "MAX_MARGIN_MS": MAX_MARGIN_MS,
    "MAX_SAFE": MAX_SAFE,
    "MAX_SPAN_MS": MAX_SPAN_MS,
    "MAX_INSTANT_MS": MAX_INSTANT_MS,
    "MAX_STORED_MS": MAX_STORED_MS,
    "WHOLE": "^%d+$",
    "REAL": r"^%d+%.?%d*e?-?%d*$",
    "SIGNED": r"^-?%d+%.?%d*e?-?%d*$",
}
# Operations whose argument is a number; that of the others is the id of a slot.
_NUMBERED = frozenset({"refund", "book", "pause"})
_DECIDE = "\n-- Decide.\n"
_SECTION = re.compile(r"\n-- (Give back|Only for [^\n]+)\.\n")
# Operations of `all` that every strategy has, by what makes them of its check.
_LOOKING = {"look": "looking", "try": "trying"}
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
# What a record is decided by, that the caller has decided on.
_RECORD = """\
    p, FOREIGN = steps[at + 2], 'WRONGTYPE not a record'
    argument, recordAt, at = recordAt, recordAt + 2, at + 3
"""
_STEP = "  -- One branch for each kind of step.\n"
_WRITE = "    -- One branch for each kind of state.\n"
_ANSWER = "allowed, limit, remaining, resetAt, retryAfterMs, state, ttl"
_SHARED = os.path.join(os.path.dirname(__file__), "scripts")


class LuaScript:
    """One script as Redis runs it, known on the wire by its name and its sha1."""

    __slots__ = ("_sha1", "name", "source")

    def __init__(self, name: str, source: str) -> None:
        self.name: str = name
        self.source: str = source
        self._sha1 = b""

    @property
    def sha1(self) -> str:
        """By which a server knows it, in hexadecimal."""
        return self.sha1_bytes.decode()

    @property
    def sha1_bytes(self) -> bytes:
        """Worked out when a server is asked: those who never do need not load OpenSSL."""
        if not self._sha1:
            from hashlib import sha1

            digest = sha1(self.source.encode(), usedforsecurity=False)
            self._sha1 = digest.hexdigest().encode()
        return self._sha1

    def __repr__(self) -> str:
        return f"<LuaScript {self.name}>"


class LuaSource:
    """The Lua file of a strategy, and what its scripts take and keep.

    `argv` names the arguments of a check in order: `now`, `cost`, and parameters by their names on
    the wire; `PERIODS` among them where the caller works them out from the instant. `constants` are
    parameters that are not passed, where one file has several variants. `state` and `raw` say in
    words what a key holds and what reading it returns. `decode` turns the latter into what
    `Strategy.restore` takes, or None; ValueError if it cannot be one. `beyond_check` names the
    functions that the file has below `-- Give back.`
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
    ) -> None:
        self.name = name
        self.file = file
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
        return self._script("check", self._text_for({"check"}), _shared("check"))

    @cached_property
    def many(self) -> LuaScript:
        """Decides for all of its keys, in order, at one instant."""
        return self._script("many", self._text_for({"check"}), _shared("many"))

    @cached_property
    def read(self) -> LuaScript:
        """Returns what a key holds, and never writes."""
        reading, _, _ = self.text.partition(_DECIDE)
        return self._script("read", reading, _shared("read"))

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
        template = _shared("alone").replace("operation(", f"{operation}(")
        argument += f"local isShadow = {_literal(shadow)}\n"
        return self._script(f"{operation}.alone", argument, self._text_for({operation}), template)

    def functions(self, operations: Collection[str], number: int) -> tuple[str, str]:
        """For the script `all`: what these operations need of the file, under names with a number
        that tells it from those of other files. What has to be kept apart from other files comes
        first, the rest can be inlined with them."""
        own = [each for each in sorted(operations) if each in self.operations]
        looks = [each for each in sorted(operations) if each not in self.operations]
        roots = ["read", "write", *own]
        if looks and "check" not in roots:
            roots.append("check")
        text = inlined(f"{_shared('prelude')}\n{self._text_for(roots[2:])}", roots)
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
        """For the script `all`: what a step of this operation is decided by, with the functions of
        that number."""
        first = 2 if operation == "check" else 3
        given = [name for name in self.argv if name not in ("now", "cost")]
        fields = {name: f"steps[at + {place}]" for place, name in enumerate(given, first)}
        fields.update({name: _literal(value) for name, value in self._constants.items()})
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
        """What the file holds."""
        with open(self.file, encoding="utf-8") as file:
            text = file.read()
        if _DECIDE not in text:
            raise ConfigInvalidError(f"{self.file} has no line '{_DECIDE.strip()}'")
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
            parts = (self._arguments(), _shared("clock"), *parts)
        text = inlined("\n".join((_shared("prelude"), *parts)))
        return LuaScript(name, head + _constants_of(text, FOREIGN=self._foreign()) + text)

    def _places(self) -> str:
        return ", ".join(f"{place} {name}" for place, name in enumerate(self.argv, 1))

    def _foreign(self) -> str:
        return f"WRONGTYPE not the state of a {self.strategy}"

    def _arguments(self) -> str:
        # A sum makes a number of a text, for less than `tonumber`.
        given = {name: f"ARGV[{place}] + 0" for place, name in enumerate(self.argv, NOW_ARGV)}
        now, cost = given.pop("now"), given.pop("cost")
        fixed = {name: _literal(value) for name, value in self._constants.items()}
        fields = ", ".join(f"{name} = {value}" for name, value in {**given, **fixed}.items())
        return f"local now, cost = {now}, {cost}\nlocal p = {{{fields}}}\n"

    def __repr__(self) -> str:
        return f"<LuaSource {self.name}>"


def _constants_of(text: str, **others: str) -> str:
    """The constants that a text names."""
    named = {*names_in(text)}
    values = {name: value for name, value in {**_CONSTANTS, **others}.items() if name in named}
    if not values:
        return ""
    return f"local {', '.join(values)} = {', '.join(map(_literal, values.values()))}\n"


class StepKind(NamedTuple):
    """What the script `all` does in a step: an operation of a strategy, as a shadow or not; or, of
    no strategy, the write of a record that the caller has decided on."""

    source: LuaSource | None
    operation: str
    shadow: bool

    @property
    def name(self) -> str:
        """In words, for the head of a script."""
        what = self.operation if self.source is None else f"{self.source.name}.{self.operation}"
        return f"{what}, a shadow" if self.shadow else what


@lru_cache(maxsize=256)
def script_of_all(kinds: frozenset[StepKind]) -> tuple[LuaScript, Mapping[StepKind, int]]:
    """The script that decides steps of any of these kinds as one, all or nothing; and the number by
    which it knows each of them."""
    numbers = {kind: place for place, kind in enumerate(sorted(kinds, key=_name), 1)}
    by_file: dict[str, list[StepKind]] = {}
    for kind in numbers:
        by_file.setdefault(kind.source.file if kind.source else "", []).append(kind)
    files = {file: number for number, file in enumerate(by_file, 1)}
    functions = [_functions(several, files[file]) for file, several in by_file.items()]
    apart = "".join([text for text, _ in functions])
    together = "".join([text for _, text in functions])
    told = "".join([f"--   {number} {kind.name}\n" for kind, number in numbers.items()])
    steps = _shared("all").replace(_STEP, _steps(numbers, files)).replace(_WRITE, _writes(files))
    parts = ("local now = ARGV[1] + 0", _shared("clock"), _shared("look"), together, steps)
    joined = "\n".join(parts)
    text = f"local FOREIGN\n{apart}{inlined(joined)}"
    return LuaScript("all", f"{_ALL_HEAD}{told}{_constants_of(text)}{text}"), numbers


def _name(kind: StepKind) -> str:
    return kind.name


def _functions(kinds: Sequence[StepKind], number: int) -> tuple[str, str]:
    """What kinds of step of one file are done by, as `LuaSource.functions` has it."""
    source = kinds[0].source
    if source is None:
        return "", _shared("record").replace("Record(", f"{number}(")
    return source.functions({kind.operation for kind in kinds}, number)


def _defines_only(roots: Collection[str], text: str) -> bool:
    """Whether a text has nothing but these functions, of which none calls another."""
    lines = text.splitlines()
    begun = [line for line in lines if line.startswith("local ")]
    return len(begun) == len(roots) and all(text.count(f"{name}(") == 1 for name in roots)


def _steps(numbers: Mapping[StepKind, int], files: Mapping[str, int]) -> str:
    """What each kind of step is decided by."""
    branches = []
    for (source, operation, shadow), number in numbers.items():
        file = files[source.file if source else ""]
        branches.append(
            f"if kind == {number} then\n"
            f"{source.step(operation, file) if source else _RECORD}"
            f"    file, isShadow = {file}, {_literal(shadow)}\n"
            "    if not home then\n"
            f"      stored = read{file}(key, p, now)\n"
            f"    elseif files[home] ~= {file} then\n"
            "      error(FOREIGN, 0)\n"
            "    end\n"
            f"    {_ANSWER} = {operation}{file}(p, stored, now, cost, argument)\n"
        )
    return f"  {'  else'.join(branches)}  end\n"


def _writes(files: Mapping[str, int]) -> str:
    """What writes each kind of state."""
    branches = [
        f"if file == {file} then\n      write{file}(key, p, state, px)\n" for file in files.values()
    ]
    return f"    {'    else'.join(branches)}    end\n"


def beside(module_file: str) -> str:
    """The Lua file that belongs to a Python file: `bucket.lua` for `bucket.py` or `_bucket.py`."""
    folder, name = os.path.split(module_file)
    return os.path.join(folder, os.path.splitext(name)[0].lstrip("_") + ".lua")


def _shared(name: str) -> str:
    with open(os.path.join(_SHARED, f"{name}.lua"), encoding="utf-8") as file:
        return file.read()


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else repr(value)


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
