"""Parsing YAML and JSON into plain values, with the line of each value.

A key that is given twice is an error in both formats, instead of silently replacing the first; so
is a number that versions of YAML read differently. YAML is read by the safe loader, so a file can
contain only data.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core._errors import ConfigInvalidError, UnsupportedError, missing

__all__ = ["Path", "PolicyFileError", "Tree", "read_json", "read_yaml"]


Path = tuple[str, ...]

_MAX_DEPTH = 32
_MAX_VALUES = 2_000_000
_MAX_SLOW = 1 << 16
_PLAIN = (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MERGE = "tag:yaml.org,2002:merge"
_UNREAD: Any = object()


class PolicyFileError(ConfigInvalidError):
    """A policy file is invalid; the message says where and what would be right."""


Places = dict[str, "tuple[int, Places | None]"]
"""By key: its line, and the places within its value. A value that is completely on the line of its
parent has no entry, to save memory with long files."""


@dataclass(slots=True)
class Tree:
    """The content of a file: its `value`, and the line of each part, as far as known."""

    source: str
    value: Any = None
    line: int | None = None
    places: Places | None = None

    def error(self, path: Path, problem: str) -> PolicyFileError:
        """The error about the value at `path`, with its place in the file."""
        return PolicyFileError(self.place(path, problem))

    def place(self, path: Path, text: str) -> str:
        """A message about the value at `path`, with its place in the file."""
        return _placed(self.source, self._line(path), ".".join(path), text)

    def _line(self, path: Path) -> int | None:
        """The line of the value at `path`, or of the nearest one around it."""
        line, places = self.line, self.places
        for key in path:
            if places is None or key not in places:
                break
            line, places = places[key]
        return line


class _Twice(dict[str, Any]):
    """A JSON object that has `key` twice. Its place is known only after parsing."""

    key = ""


def read_json(text: str, source: str) -> Tree:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            keys = [key for key, _ in pairs]
            made = _Twice(made)
            made.key = next(key for key in keys if keys.count(key) > 1)
        return made

    def constant(name: str) -> Any:
        raise _error(source, None, "", f"{name} is not a number")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
        tree = Tree(source, value)
        _refuse_twice(tree, value, ())
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON: {error.msg} at column {error.colno}"
        raise _error(source, error.lineno, "", problem) from None
    except PolicyFileError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise _error(source, None, "", f"is not valid JSON: {error}") from None
    except RecursionError:
        raise _error(source, None, "", "is nested too deeply") from None
    return tree


def _refuse_twice(tree: Tree, value: Any, path: Path) -> None:
    if isinstance(value, _Twice):
        raise tree.error((*path, value.key), "is given twice; keep one of them")
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_twice(tree, inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            _refuse_twice(tree, inner, (*path, str(at)))


def read_yaml(text: str, source: str) -> Tree:
    try:
        import yaml
    except ImportError:
        raise UnsupportedError(
            f"{missing('reading YAML', 'yaml')}; or write the policies as JSON"
        ) from None
    try:
        return _read_yaml(yaml, text, source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise _error(source, line, "", f"is not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise _error(source, None, "", f"is not valid YAML: {problem}") from None
    except RecursionError:
        raise _error(source, None, "", "is nested too deeply") from None


def _read_yaml(yaml: Any, text: str, source: str) -> Tree:
    """Use the compiled parser if there is one, which takes a sixth of the time."""
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        try:
            return _YamlReader(yaml, fast(text), source).read()
        except yaml.YAMLError:
            if len(text) > _MAX_SLOW:
                raise
    # For a short text, the interpreted parser gives a better error message.
    return _YamlReader(yaml, yaml.SafeLoader(text), source).read()


class _Anchored(NamedTuple):
    """The value of an anchor, the places in it, and the number of values that it consists of."""

    value: Any
    places: Places | None
    size: int


class _YamlReader:
    """Makes values directly from the events of the YAML parser. A long file has a million events,
    and the nodes that the library would make of them take longer than everything else."""

    def __init__(self, yaml: Any, loader: Any, source: str) -> None:
        self._yaml = yaml
        self._loader = loader
        self._next = loader.get_event
        self._scalar_event, self._mapping_end = yaml.ScalarEvent, yaml.MappingEndEvent
        self._tree = Tree(source)
        self._anchors: dict[str, _Anchored | None] = {}
        # First characters of scalars that may be something other than text.
        self._special = frozenset(loader.yaml_implicit_resolvers)
        # Scalars by their text: in long files the same ones occur again and again.
        self._plain: dict[str, Any] = {}
        self._count = 0

    def read(self) -> Tree:
        tree = self._tree
        try:
            self._next()
            if type(self._next()) is self._yaml.DocumentStartEvent:
                event = self._next()
                tree.line = event.start_mark.line + 1
                tree.value, tree.places = self._value(event, (), tree.line)
                self._next()
                self._refuse_more(self._next())
        except PolicyFileError:
            raise
        except (ValueError, OverflowError):
            line = self._loader.line + 1
            problem = "has an escape that stands for no character"
            raise _error(tree.source, line, "", problem) from None
        return tree

    def _refuse_more(self, event: Any) -> None:
        if type(event) is self._yaml.DocumentStartEvent:
            raise self._yaml.composer.ComposerError(
                "expected a single document in the stream",
                None,
                "but found another document",
                event.start_mark,
            )

    def _value(self, event: Any, path: Path, line: int) -> tuple[Any, Places | None]:
        """A value that is on `line`, and the places in it that are on other lines."""
        kind = type(event)
        if kind is self._yaml.AliasEvent:
            return self._alias(event, path)
        if len(path) > _MAX_DEPTH:
            raise self._error(event, path, "is nested too deeply")
        before, anchor = self._count, event.anchor
        if anchor is not None:
            self._begin(anchor, event)
        places: Places | None = None
        if kind is self._scalar_event:
            value = self._scalar(event, path)
        elif event.tag not in _PLAIN:
            problem = f"has the tag {event.tag}; a policy file is plain data"
            raise self._error(event, path, problem)
        elif kind is self._yaml.MappingStartEvent:
            value, places = self._mapping(path, line)
        else:
            value, places = self._sequence(path, line)
        if anchor is not None:
            # Aliases report the lines of the anchor.
            places = _every_place(value, places, line)
            self._anchors[anchor] = _Anchored(value, places, self._count - before + 1)
        return value, places or None

    def _sequence(self, path: Path, line: int) -> tuple[list[Any], Places]:
        made: list[Any] = []
        places: Places = {}
        end = self._yaml.SequenceEndEvent
        while type(event := self._next()) is not end:
            at, own_line = str(len(made)), event.start_mark.line + 1
            value, below = self._value(event, (*path, at), own_line)
            made.append(value)
            if below is not None or own_line != line:
                places[at] = own_line, below
        self._add(len(made), event, path)
        return made, places

    def _mapping(self, path: Path, line: int) -> tuple[dict[Any, Any], Places]:
        made: dict[Any, Any] = {}
        places: Places = {}
        merged: list[_Anchored] = []
        read, plain, end, scalar = self._next, self._plain, self._mapping_end, self._scalar_event
        while type(event := read()) is not end:
            own_line = event.start_mark.line + 1
            # Nearly all keys, and most values, are known from before.
            if type(event) is scalar and event.anchor is None:
                key = plain.get(event.value, _UNREAD) if event.tag is None else _UNREAD
                if key is _UNREAD or not event.implicit[0]:
                    if event.value == "<<" and self._tag_of(event) == _MERGE:
                        merged += self._merge(path, own_line)
                        continue
                    key = self._scalar(event, path)
            else:
                key = self._unusual_key(event, path, own_line)
            name = key if type(key) is str else str(key)
            if key in made:
                raise self._error(event, (*path, name), "is given twice; keep one of them")
            event = read()
            if type(event) is scalar and event.anchor is None:
                made[key], below = self._scalar(event, path, name), None
            else:
                made[key], below = self._value(event, (*path, name), own_line)
            if below is not None or own_line != line:
                places[name] = own_line, below
        self._add(len(made), event, path)
        if not merged:
            return made, places
        return _merged(merged, made, _every_place(made, places, line))

    def _merge(self, path: Path, line: int) -> list[_Anchored]:
        """The mappings that `<<` merges, in ascending order of precedence."""
        event = self._next()
        value, places = self._value(event, path, line)
        if isinstance(value, dict):
            return [_Anchored(value, _every_place(value, places, line), 1)]
        if not isinstance(value, list):
            raise self._misplaced("mapping or list of mappings", "scalar", event)
        found = []
        for at, each in enumerate(value):
            if not isinstance(each, dict):
                kind = "sequence" if isinstance(each, list) else "scalar"
                raise self._misplaced("mapping", kind, event)
            at_line, below = (places or {}).get(str(at), (line, None))
            found.append(_Anchored(each, _every_place(each, below, at_line), 1))
        return found[::-1]

    def _misplaced(self, wanted: str, found: str, event: Any) -> Exception:
        problem = f"expected a {wanted} for merging, but found {found}"
        error: Exception = self._yaml.constructor.ConstructorError(
            "while constructing a mapping", None, problem, event.start_mark
        )
        return error

    def _alias(self, event: Any, path: Path) -> tuple[Any, Places | None]:
        if event.anchor not in self._anchors:
            raise self._yaml.composer.ComposerError(
                None, None, f"found undefined alias {event.anchor!r}", event.start_mark
            )
        read = self._anchors[event.anchor]
        if read is None:
            # An alias inside its own anchor would be infinite.
            raise self._error(event, path, "is nested too deeply")
        self._add(read.size, event, path)
        return read.value, read.places

    def _add(self, count: int, event: Any, path: Path) -> None:
        """Count values, and reject a file that expands to too many by its aliases."""
        self._count += count
        if self._count > _MAX_VALUES:
            problem = f"the file has more than {_MAX_VALUES:,} values, with its aliases expanded"
            raise self._error(event, path, problem)

    def _begin(self, anchor: str, event: Any) -> None:
        if anchor in self._anchors:
            raise self._yaml.composer.ComposerError(
                f"found duplicate anchor {anchor!r}; first occurrence",
                None,
                "second occurrence",
                event.start_mark,
            )
        self._anchors[anchor] = None

    def _unusual_key(self, event: Any, path: Path, line: int) -> Any:
        """A key with an anchor or tag, or an alias."""
        if type(event) not in (self._yaml.ScalarEvent, self._yaml.AliasEvent):
            raise self._error(event, path, "has a key that is not text")
        key = self._value(event, path, line)[0]
        if not isinstance(key, Hashable):
            raise self._error(event, path, "has a key that is not text")
        return key

    def _scalar(self, event: Any, path: Path, name: str | None = None) -> Any:
        """A scalar, as a value or a key. `path` is that of the mapping, and `name` the key of the
        value in it."""
        tag, text = event.tag, event.value
        if tag is None:
            if not event.implicit[0]:
                return text
            if text in self._plain:
                return self._plain[text]
        inner = path if name is None else (*path, name)
        try:
            value = self._constructed(event)
        except Exception:  # the library fails in many ways on text that its tag does not fit
            raise self._error(event, inner, _misfit(self._tag_of(event), text)) from None
        if tag is None:
            if type(value) in (int, float) and (problem := _ambiguous(text)):
                raise self._error(event, inner, problem)
            self._plain[text] = value
        return value

    def _constructed(self, event: Any) -> Any:
        text = event.value
        try:
            if event.tag is None and text.isdecimal() and text.isascii() and text[0] != "0":
                return int(text)
            if event.tag is None and text and text[0] not in self._special:
                return text
            node = self._yaml.ScalarNode(self._tag_of(event), text)
            return self._loader.construct_object(node, deep=True)
        except ValueError:  # such as the date 2024-99-99, which is plain text then
            return text

    def _tag_of(self, event: Any) -> str:
        if event.tag is not None and event.tag != "!":
            return str(event.tag)
        return str(self._loader.resolve(self._yaml.ScalarNode, event.value, event.implicit))

    def _error(self, event: Any, path: Path, problem: str) -> PolicyFileError:
        return _error(self._tree.source, event.start_mark.line + 1, ".".join(path), problem)


def _every_place(value: Any, places: Places | None, line: int) -> Places:
    """The places of all parts of a value that is on `line`."""
    keys: Iterable[Any] = value if isinstance(value, dict) else ()
    if isinstance(value, list):
        keys = range(len(value))
    known = places or {}
    return {str(key): known.get(str(key), (line, None)) for key in keys}


def _merged(
    found: list[_Anchored], made: dict[Any, Any], places: Places
) -> tuple[dict[Any, Any], Places]:
    """A mapping with what it merges; its own keys take precedence."""
    all_made: dict[Any, Any] = {}
    all_places: Places = {}
    for value, below, _ in found:
        all_made.update(value)
        all_places.update(below or {})
    return all_made | made, all_places | places


def _misfit(tag: str, text: str) -> str:
    tag = tag.replace("tag:yaml.org,2002:", "!!")
    return f"has the tag {tag[:60]}, which does not fit {text[:60]!r}; leave the tag out"


def _ambiguous(text: str) -> str:
    """What is wrong with a number that YAML 1.1 and 1.2 read differently."""
    readers = f"some readers of YAML take {text[:60]} for"
    if ":" in text:
        return f"{readers} a number and some for text; put it in quotes, or write the number out"
    digits = text.lstrip("+-")
    if digits[0] == "0" and digits[1:2] in tuple("0123456789_"):
        return f"{readers} another number; write it without the 0, or in quotes if it is text"
    return ""


def _error(source: str, line: int | None, path: str, problem: str) -> PolicyFileError:
    return PolicyFileError(_placed(source, line, path, problem))


def _placed(source: str, line: int | None, path: str, text: str) -> str:
    # A path may contain any text of the file; a message has to be one line.
    path = path if path.isprintable() else ascii(path)
    where = source if line is None else f"{source}, line {line}"
    return f"{where}: {path}: {text}" if path else f"{where}: {text}"
