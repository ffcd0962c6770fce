"""Inlining: Lua scripts without functions.

A server creates every function of a script again each time the script runs: about 0.1 us each, and
as much again for every variable that it shares with the script. For a check this costs more than
the arithmetic. So a strategy is written as functions, for readers, and its scripts are assembled
with the functions inlined, for servers.

The text is processed line by line, without parsing expressions. A function starts with `local
function` and ends with `end`, both at the left margin. It is inlined if its only `return` is its
last line, at every call that has a line of its own::

    local function double(x)
      local twice = 2 * x              local double1_1
      return twice                     do
    end                                  local x = y + 1
                                         local twice = 2 * x
    local z = double(y + 1)              double1_1 = twice
                                       end
                                       local z = double1_1

Other functions and calls stay as they are, and functions that are no longer called are removed. An
inlined body must not see other variables than before: where a variable that it takes from the
script is shadowed at the place of the call, the call stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

__all__ = ["inlined", "names_in"]

_WORD = re.compile(r"\w+")
_BEGIN, _END = "local function ", "end"
# The ends of lines that continue on the next one, and the beginnings of lines that continue one.
_UNFINISHED = (*"=({[,.+-*/%^<>", " and", " or", " not")
_FURTHER = (*"=(){}[],.:+-*/%^<>~", "and ", "or ")
_GLOBALS = (
    *("ARGV", "KEYS", "cjson", "error", "ipairs", "math", "next", "pairs", "redis", "string"),
    *("table", "tonumber", "tostring", "type", "unpack"),
)


class _Function(NamedTuple):
    """`lines` is the body without the last `return`, and `results` what that returns; None if the
    function cannot be inlined. `declared` are its own variables, `outer` those of the script that
    it uses."""

    name: str
    parameters: str
    lines: tuple[str, ...]
    results: str | None
    declared: frozenset[str]
    outer: frozenset[str]

    @property
    def changed(self) -> set[str]:
        """The names that it may assign to, parameters included."""
        lines = [line.split("=")[:-1] for line in self.lines]
        return {name for befores in lines for before in befores for name in names_in(before)}


class _Call(NamedTuple):
    """A call on a line of its own."""

    indent: str
    targets: str
    is_local: bool
    name: str
    arguments: str


def inlined(text: str, roots: Collection[str] = ()) -> str:
    """The same script with its functions inlined. `roots` stay: they are called from elsewhere."""
    # Strings and comments over several lines cannot be processed line by line.
    return text if "[[" in text else _Inlining(list(_parts(text))).script(roots)


class _Inlining:
    def __init__(self, parts: Sequence[_Function | str]) -> None:
        self._parts = parts
        self._functions = {part.name: part for part in parts if isinstance(part, _Function)}
        self._declared = _declared_again(parts)
        self._made = 0

    def script(self, roots: Collection[str]) -> str:
        """The script, made from its end: a function is only called below its definition."""
        called = {*roots}
        made: list[str] = []
        for part in reversed(self._parts):
            if isinstance(part, str):
                lines = self._line(part, self._declared, ())
            elif part.name in called:
                lines = self._function(part)
            else:
                continue
            called.update(name for line in lines for name in names_in(line))
            made += reversed(lines)
        return "".join([f"{line}\n" for line in reversed(made)])

    def _function(self, function: _Function) -> list[str]:
        lines = self._body(function, function.declared, (function.name,))
        if function.results:
            lines.append(f"  return {function.results}")
        return [f"{_BEGIN}{function.name}({function.parameters})", *lines, _END]

    def _body(
        self, function: _Function, declared: frozenset[str], within: tuple[str, ...]
    ) -> list[str]:
        return [made for line in function.lines for made in self._line(line, declared, within)]

    def _line(self, line: str, declared: frozenset[str], within: tuple[str, ...]) -> list[str]:
        """The lines that replace a line, where these names are declared. `within` are the functions
        that are being inlined."""
        call = _call_on(line)
        function = self._functions.get(call.name) if call else None
        if not call or not function or function.results is None or function.name in within:
            return [line]
        if not function.outer.isdisjoint(declared):
            return [line]
        within = (*within, function.name)
        body = self._body(function, declared | function.declared, within)
        made = [f"{call.indent}{each}" for each in self._in_place(call, function, body)]
        # What a function of one line returns may itself be a call.
        return self._line(made[0], declared, within) if len(made) == 1 else made

    def _in_place(self, call: _Call, function: _Function, body: list[str]) -> Iterator[str]:
        """The lines that replace a call."""
        names, local = call.targets, "local " if call.is_local else ""
        results = function.results or "nil"
        used = {name for line in (call.arguments, *body, results) for name in names_in(line)}
        bindings = _bindings(function, call)
        if not body and not bindings and names:
            yield f"{local}{names} = {results}"
            return
        is_free = used.isdisjoint(names_in(names)) and function.declared.isdisjoint(names_in(names))
        if names and not is_free:
            self._made += 1
            count = names.count(",") + 1
            names = ", ".join([f"{call.name}{self._made}_{each}" for each in range(1, count + 1)])
        if names and (call.is_local or not is_free):
            yield f"local {names}"
        yield "do"
        if bindings:
            yield f"  local {bindings}"
        yield from body
        if names:
            yield f"  {names} = {results}"
        elif "(" in results:
            # The result is not used, but computing it may have an effect.
            yield f"  local unused = {results}"
        yield "end"
        if names and not is_free:
            yield f"{local}{call.targets} = {names}"


def _declared_again(parts: Sequence[_Function | str]) -> frozenset[str]:
    """The names that may mean another variable outside of functions than in a function above: those
    that are declared in blocks, or twice."""
    once: set[str] = set()
    again: set[str] = set()
    for part in parts:
        if isinstance(part, str):
            names = _declared_by(part)
            again.update(names if not part.startswith("local ") else once.intersection(names))
            once.update(names)
    return frozenset(again)


def _parts(text: str) -> Iterator[_Function | str]:
    """The functions at the left margin, and the lines in between, without comments."""
    lines = iter(_statements(text))
    known = {*_GLOBALS}
    for line in lines:
        if not line.startswith(_BEGIN):
            if line.startswith("local "):
                known.update(_declared_by(line))
            yield line
            continue
        name, _, rest = line.removeprefix(_BEGIN).partition("(")
        parameters, _, rest = rest.partition(")")
        body = [f"  {rest.strip().removesuffix(_END).strip()}"]
        if not rest:
            body = list(takewhile(_END.__ne__, lines))
        yield _function_of(name, parameters, body, known)
        known.add(name)


def _statements(text: str) -> Iterator[str]:
    """The lines without comments and empty lines. A statement that continues on the next line
    becomes one line."""
    whole = ""
    for line in text.splitlines():
        code = _without_comment(line)
        if not code.strip():
            continue
        goes_on = whole and _goes_on(whole, code.lstrip())
        if whole and not goes_on:
            yield whole
            whole = ""
        whole = f"{whole} {code.lstrip()}" if goes_on else code
    if whole:
        yield whole


def _goes_on(line: str, following: str) -> bool:
    if line.endswith("return"):
        return not following.startswith(("end", "else", "until"))
    return line.endswith(_UNFINISHED) or following.startswith(_FURTHER)


def _without_comment(line: str) -> str:
    if "--" not in line:
        return line.rstrip()
    quote = ""
    for place, each in enumerate(line):
        if quote:
            # A quote after a backslash does not end the string.
            if each == quote and line[place - 1] != "\\":
                quote = ""
        elif each in "'\"":
            quote = each
        elif line.startswith("--", place):
            return line[:place].rstrip()
    return line.rstrip()


def _function_of(name: str, parameters: str, body: list[str], known: Collection[str]) -> _Function:
    local = {each for line in body for each in _declared_by(line)}
    declared = frozenset(local.union(names_in(parameters)))
    used = {each for line in body for each in names_in(line)}
    outer = frozenset(used.intersection(known) - declared)
    lines, results = body, ""
    if body and f"{body[-1]} ".startswith("  return "):
        lines, results = body[:-1], body[-1].removeprefix("  return").strip()
    has_one_end = not any("return" in names_in(line) for line in lines) and "..." not in parameters
    # If it declares a name that the script has too, lines above that may use the script's.
    if has_one_end and local.isdisjoint(known):
        return _Function(name, parameters, tuple(lines), results, declared, outer)
    return _Function(name, parameters, tuple(body), None, declared, outer)


@lru_cache(maxsize=4096)
def _call_on(line: str) -> _Call | None:
    """The call, if the line is one statement that is a call; otherwise None."""
    code = line.lstrip()
    indent = line[: len(line) - len(code)]
    targets, equals, value = code.partition(" = ")
    if not equals:
        targets, value = "", code
    is_local = targets.startswith("local ")
    targets = targets.removeprefix("local ")
    name, _, arguments = value.partition("(")
    if not name.isidentifier() or not arguments.endswith(")"):
        return None
    # The first parenthesis must close at the end, unlike in `f(x) + g(y)`; none may be in a string.
    depth, texts = 1, "'" in arguments or '"' in arguments
    for each in arguments[:-1]:
        depth += (each == "(") - (each == ")")
        if not depth or (texts and depth > 1):
            return None
    return _Call(indent, targets, is_local, name, arguments[:-1])


def _bindings(function: _Function, call: _Call) -> str:
    """The declaration of the parameters; empty if the arguments are variables of the same names."""
    parameters = names_in(function.parameters)
    arguments = call.arguments.split(", ") if call.arguments else []
    is_plain = not any(each in call.arguments for each in "([{'\"")
    if not is_plain or len(arguments) < len(parameters):
        return f"{function.parameters} = {call.arguments or 'nil'}" if parameters else ""
    pairs = [
        (parameter, argument)
        for parameter, argument in zip(parameters, arguments, strict=False)
        if parameter != argument or parameter in function.changed
    ]
    if not pairs:
        return ""
    return f"{', '.join([name for name, _ in pairs])} = {', '.join([value for _, value in pairs])}"


@lru_cache(maxsize=4096)
def _declared_by(line: str) -> tuple[str, ...]:
    """The names that a line declares: `local a, b = ...`, `for a, b in ...`, `for a = ...`."""
    code = line.strip()
    for keyword in ("local function ", "local ", "for "):
        if code.startswith(keyword):
            names, _, _ = code.removeprefix(keyword).partition("=")
            names, _, _ = names.partition(" in ")
            names, _, _ = names.partition("(")
            return names_in(names)
    return ()


@lru_cache(maxsize=4096)
def names_in(code: str) -> tuple[str, ...]:
    """The words of a piece of code."""
    return tuple(_WORD.findall(code))
