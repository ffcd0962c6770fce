"""Reading strategies from a policy file, by their declared names and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from ..core._errors import ConfigInvalidError
from ..core._register import find_strategy, registered
from ..core._strategy import Parameter, Strategy
from ._reader import Fields, camel
from ._tree import Path, PolicyFileError, Tree

__all__ = [
    "class_of",
    "example_of",
    "given_values",
    "guarded",
    "made",
    "parameter_names",
    "spellings",
    "strategy_of",
]

T = TypeVar("T")


def _span_word(parameter: Parameter) -> str:
    """`window` for `window_ms`: the name for a duration as text."""
    return parameter.name.removesuffix("_ms")


@lru_cache(maxsize=256)
def spellings(parameter: Parameter) -> tuple[str, ...]:
    """The names under which a file may give it, in snake_case."""
    if parameter.kind == "span":
        return _span_word(parameter), parameter.name
    return (parameter.name,)


@lru_cache(maxsize=256)
def parameter_names(cls: type[Strategy]) -> tuple[str, ...]:
    """All spellings of the parameters of a strategy."""
    return tuple(name for parameter in cls.parameters for name in spellings(parameter))


def example_of(cls: type[Strategy]) -> str:
    """The shortest definition of a policy with that strategy."""
    required = (each for each in cls.parameters if each.is_required)
    given = (f"{camel(spellings(each)[0])}: {each.example}" for each in required)
    return f"{{strategy: {', '.join((cls.wire_name, *given))}}}"


def class_of(
    tree: Tree, path: Path, held: Mapping[str, Any], also: Sequence[type[Strategy]] = ()
) -> type[Strategy]:
    """The class that `strategy` names, among those registered and in `also`."""
    chosen = held["strategy"]
    cls = find_strategy(chosen) if isinstance(chosen, str) else None
    if cls is not None:
        return cls
    for other in also:
        if chosen in (other.name, other.wire_name):
            return other
    every = (*registered(), *also)
    known = dict.fromkeys(name for cls in every for name in (cls.wire_name, cls.name))
    Fields(tree, path, {"strategy": chosen}, ("strategy",)).choice("strategy", tuple(known))
    raise AssertionError(chosen)  # a name that is known was found above


def given_values(
    fields: Fields, cls: type[Strategy], *, all_of_them: bool = True
) -> dict[str, Any]:
    """The given parameters, by name. With `all_of_them`, a missing required one is an error."""
    readers, required = _readers(cls)
    values = {}
    for spelling in fields.given():
        if spelling in readers:
            name, read = readers[spelling]
            values[name] = read(fields)
    if all_of_them:
        for name in required:
            if name not in values:
                readers[name][1](fields)  # raises the error that it is missing
    return values


_Readers = dict[str, tuple[str, Callable[[Fields], Any]]]


@lru_cache(maxsize=256)
def _readers(cls: type[Strategy]) -> tuple[_Readers, list[str]]:
    """How each parameter is read, by its spellings, and the names of the required ones."""
    readers = {
        spelling: (each.name, _reader(each))
        for each in cls.parameters
        for spelling in spellings(each)
    }
    return readers, [each.name for each in cls.parameters if each.is_required]


def strategy_of(fields: Fields) -> Strategy:
    """The strategy that is given beside `strategy`."""
    cls = find_strategy(fields.raw("strategy"))
    assert cls is not None
    return made(fields, cls, given_values(fields, cls))


def made(fields: Fields, cls: type[Strategy], values: Mapping[str, Any]) -> Strategy:
    """Make a strategy of these values; errors are reported at the place of `fields`. It keeps its
    figures, since plans, overrides and reloads change them."""
    try:
        return cls(**values).keeping_figures()
    except ConfigInvalidError as error:
        raise fields.tree.error(fields.path, str(error)) from error


def _reader(parameter: Parameter) -> Callable[[Fields], Any]:
    name, example, kind = parameter.name, parameter.example, parameter.kind
    if kind == "count":
        low, high = parameter.low, parameter.high
        return lambda fields: fields.integer(name, example, low, high)
    if kind == "span":
        word = _span_word(parameter)
        return lambda fields: fields.span_ms(word, example)
    if kind == "rate":
        return lambda fields: fields.number(name, example)
    if kind == "zone":
        return lambda fields: _zone(fields, name, example)
    return lambda fields: fields.choice(name, parameter.choices)


def _zone(fields: Fields, name: str, example: str) -> str:
    fields.need(name, example)
    return fields.text(name)


def guarded(fields: Fields, make: Callable[[Fields], T]) -> T:
    """Run `make`, and add the place in the file to its errors."""
    try:
        return make(fields)
    except PolicyFileError:
        raise
    except ConfigInvalidError as error:
        raise fields.tree.error(fields.path, str(error)) from error
