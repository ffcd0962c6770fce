"""Strict reading of one mapping of a policy file: every key is known, every value has its type.

Names are in snake_case here. A file may use snake_case or camelCase, and messages use the spelling
of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

from ..core._durations import parse_duration_ms
from ..core._errors import ConfigInvalidError
from ..core._strategy import camel_case
from ..core._validation import MAX_SAFE, MAX_SPAN_MS
from ._tree import Path, Tree

__all__ = ["Fields", "camel", "snake"]


Choice = TypeVar("Choice", bound=str)

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


@lru_cache(maxsize=256)
def snake(name: str) -> str:
    """`windowMs` and `window_ms` are both `window_ms`."""
    return _HUMP.sub(lambda match: "_" + match[1].lower(), name)


camel = lru_cache(maxsize=256)(camel_case)

_duration_ms = lru_cache(maxsize=256)(parse_duration_ms)


@lru_cache(maxsize=256)
def _spellings(known: tuple[str, ...]) -> dict[str, str]:
    """The names by each spelling that a file may use."""
    return {spelled: name for name in known for spelled in (name, camel(name))}


@lru_cache(maxsize=1024)
def _names(known: tuple[str, ...], keys: tuple[Any, ...]) -> tuple[str, ...] | None:
    """The names of the keys of a mapping; None if one is unknown, or given twice. Cached, because
    even a long file has few combinations of keys."""
    spellings = _spellings(known)
    names = [spellings[key] for key in keys if key in spellings]
    return tuple(names) if len(set(names)) == len(keys) else None


class Fields:
    """The fields of one mapping, read one by one."""

    __slots__ = ("_known", "_raw", "_values", "path", "tree")

    def __init__(self, tree: Tree, path: Path, value: Any, known: Iterable[str]) -> None:
        self.tree = tree
        self.path = path
        self._known = known if type(known) is tuple else tuple(known)
        self._raw: dict[Any, Any] = {}
        if not isinstance(value, dict):
            raise tree.error(path, f"must be a mapping with {self._listed()}, not {shown(value)}")
        self._raw = value
        names = _names(self._known, tuple(value))
        if names is None:
            self._refuse_one()
        self._values = dict(zip(names, value.values(), strict=True))

    @property
    def _given(self) -> dict[str, str]:
        """The spelling in the file, by the name of each given field."""
        spellings = _spellings(self._known)
        return {spellings[key]: key for key in reversed(self._raw) if key in spellings}

    def _refuse_one(self) -> NoReturn:
        """Raise the error of the first key that is unknown or given twice."""
        spellings, seen = _spellings(self._known), dict[str, Any]()
        for key in self._raw:
            name, path = spellings.get(key), (*self.path, str(key))
            if name is None:
                raise self.tree.error(path, self._unknown(str(key)))
            if name in seen:
                told = f"is given twice, as {seen[name]} too; keep one of them"
                raise self.tree.error(path, told)
            seen[name] = key
        raise AssertionError(self._raw)  # only called if one of them is wrong

    def _spelling(self, name: str) -> str:
        """A name in the spelling that the other keys of the mapping use."""
        in_snake_case = any("_" in str(key) for key in self._raw)
        return snake(name) if in_snake_case else camel(name)

    def _unknown(self, key: str) -> str:
        spelled = [self._spelling(name) for name in self._known]
        near = get_close_matches(key, spelled, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"it may have {self._listed()}"
        return f"is not known here; {hint}"

    def _listed(self) -> str:
        return ", ".join(self._spelling(name) for name in self._known)

    def spelled(self, name: str) -> str:
        """A name as the file would write it."""
        return self._given.get(name) or self._spelling(name)

    def has(self, name: str) -> bool:
        return name in self._values

    def given(self) -> Mapping[str, Any]:
        """The given values, by name."""
        return self._values

    def fail(self, name: str, problem: str) -> NoReturn:
        raise self.tree.error((*self.path, self.spelled(name)), problem)

    def need(self, name: str, example: str) -> Any:
        if name not in self._values:
            self.fail(name, f"is missing; write for example {self.spelled(name)}: {example}")
        return self._values[name]

    def integer(self, name: str, example: int, low: int = 1, high: int = MAX_SAFE) -> int:
        value = self._values.get(name)
        if type(value) is not int or not low <= value <= high:
            self.need(name, str(example))
            self.fail(name, f"must be a whole number from {low} to {high}, not {shown(value)}")
        return value

    def number(self, name: str, example: float) -> float:
        value = self.need(name, str(example))
        if type(value) not in (int, float):
            self.fail(name, f"must be a number such as {example}, not {shown(value)}")
        number: float = value
        return number

    def flag(self, name: str) -> bool:
        value = self._values[name]
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, not {shown(value)}")
        return value

    def text(self, name: str) -> str:
        value = self._values[name]
        if not isinstance(value, str):
            self.fail(name, f"must be text, not {shown(value)}")
        return value

    def choice(self, name: str, choices: Sequence[Choice]) -> Choice:
        value = self.need(name, choices[0])
        chosen = next((choice for choice in choices if choice == value), None)
        if chosen is None:
            near = get_close_matches(str(value), choices, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.fail(name, f"must be one of {', '.join(choices)}, not {shown(value)}{hint}")
        return chosen

    def span_ms(self, name: str, example: str) -> int:
        """A duration: `name` as text such as "1m", or `name_ms` as a number."""
        exact = f"{name}_ms"
        if exact in self._values:
            if name in self._values:
                self.fail(name, f"is given twice, as {self.spelled(exact)} too; keep one of them")
            return self.integer(exact, 60_000, high=MAX_SPAN_MS)
        value = self.need(name, example)
        if not isinstance(value, str):
            self.fail(
                name,
                f"must be a duration such as {example!r}, not {shown(value)}; "
                f"a number of milliseconds goes under {self._spelling(exact)}",
            )
        try:
            return _duration_ms(value)
        except ConfigInvalidError as error:
            self.fail(name, str(error))

    def below(self, name: str, known: Iterable[str]) -> Fields:
        """The mapping under `name`."""
        return Fields(self.tree, (*self.path, self._given[name]), self._values[name], known)

    def raw(self, name: str) -> Any:
        return self._values[name]


def shown(value: Any) -> str:
    """A value as the file would write it, in short."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    # YAML has dates, and what looks like one is one.
    text = value.isoformat() if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
