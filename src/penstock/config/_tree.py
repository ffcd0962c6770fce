"""From the text of a file to plain values, and the line on which each of them stands.

Both formats refuse what they would otherwise settle silently: a key that is given twice. YAML is
read by the safe loader, so a file holds data and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..core._errors import ConfigInvalidError, UnsupportedError, missing

__all__ = ["Path", "PolicyFileError", "Tree", "read_json", "read_yaml"]


Path = tuple[str, ...]

_MAX_DEPTH = 32
_MAX_NODES = 100_000
_MAX_SLOW = 1 << 16
_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MERGE = "tag:yaml.org,2002:merge"


class PolicyFileError(ConfigInvalidError):
    """Something in a policy file is wrong; the text says where."""


@dataclass(slots=True)
class Tree:
    """A file's content. `lines` has the line of every path that is known."""

    source: str
    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)

    def error(self, path: Path, problem: str) -> PolicyFileError:
        """The refusal of what stands at `path`: where it is and what would be right."""
        return PolicyFileError(self.place(path, problem))

    def place(self, path: Path, text: str) -> str:
        """A text about what stands at `path`, with where that is."""
        return _placed(self.source, self._line(path), ".".join(path), text)

    def _line(self, path: Path) -> int | None:
        """That of the nearest thing around `path` that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


class _Twice(dict[str, Any]):
    """A JSON object that gives `key` twice. Where it stands is known once all is read."""

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
    """By the library's compiled reader where there is one, which takes a sixth of the time."""
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        try:
            _refuse_depth(yaml.parse(text, fast), source)
            return _tree_of(yaml, fast(text), source)
        except yaml.YAMLError:
            if len(text) > _MAX_SLOW:
                raise
    # The other reader has the last word on a short text, and says better what is wrong with it.
    return _tree_of(yaml, yaml.SafeLoader(text), source)


def _tree_of(yaml: Any, loader: Any, source: str) -> Tree:
    return _YamlReader(yaml, loader, Tree(source)).read(_root(loader, source))


def _refuse_depth(events: Iterable[Any], source: str) -> None:
    """The compiled reader follows a text down as deep as it goes, and would crash on the way."""
    depth = 0
    for event in events:
        name = type(event).__name__
        if name.endswith("StartEvent"):
            depth += 1
        elif name.endswith("EndEvent"):
            depth -= 1
        if depth > 2 * _MAX_DEPTH:
            raise _error(source, event.start_mark.line + 1, "", "is nested too deeply")


def _root(loader: Any, source: str) -> Any:
    try:
        return loader.get_single_node()
    except (ValueError, OverflowError):
        line = loader.line + 1
        raise _error(source, line, "", "has an escape that stands for no character") from None


class _YamlReader:
    """Values from YAML's nodes, which know their lines."""

    def __init__(self, yaml: Any, loader: Any, tree: Tree) -> None:
        self._yaml = yaml
        self._loader = loader
        self._tree = tree
        self._merged: set[int] = set()
        self._scalars: dict[tuple[str, str], Any] = {}
        self._count = 0

    def read(self, node: Any) -> Tree:
        self._tree.value = None if node is None else self._value(node, ())
        return self._tree

    def _value(self, node: Any, path: Path) -> Any:
        self._tree.lines.setdefault(path, node.start_mark.line + 1)
        self._count += 1
        # An alias may stand for what it is part of, or for more than any file needs.
        if len(path) > _MAX_DEPTH or self._count > _MAX_NODES:
            raise self._tree.error(path, "is nested too deeply")
        if node.tag not in _PLAIN and not isinstance(node, self._yaml.ScalarNode):
            raise self._tree.error(path, f"has the tag {node.tag}; a policy file is plain data")
        if isinstance(node, self._yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, self._yaml.SequenceNode):
            return [self._value(item, (*path, str(at))) for at, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[Any, Any]:
        if any(key.tag == _MERGE for key, _ in node.value) and id(node) not in self._merged:
            self._merged.add(id(node))
            self._refuse_twice(node, path)
            # Puts what `<<` brings in before the mapping's own keys, which so have the last word.
            self._loader.flatten_mapping(node)
        made: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node, path)
            inner = (*path, str(key))
            self._tree.lines[inner] = key_node.start_mark.line + 1
            if key in made and id(node) not in self._merged:
                raise self._tree.error(inner, "is given twice; keep one of them")
            made[key] = self._value(value_node, inner)
        return made

    def _refuse_twice(self, node: Any, path: Path) -> None:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self._scalar(key_node, path)
            inner = (*path, str(key))
            self._tree.lines[inner] = key_node.start_mark.line + 1
            if key in seen:
                raise self._tree.error(inner, "is given twice; keep one of them")
            seen.add(key)

    def _scalar(self, node: Any, path: Path) -> Any:
        """Files repeat themselves: what was read once is not read again."""
        if not isinstance(node, self._yaml.ScalarNode):
            return self._constructed(node, path)
        text = (node.tag, node.value)
        if text not in self._scalars:
            self._scalars[text] = self._constructed(node, path)
        return self._scalars[text]

    def _constructed(self, node: Any, path: Path) -> Any:
        try:
            value = self._loader.construct_object(node, deep=True)
        except ValueError:  # such as the date 2024-99-99, which is text to anybody but YAML
            value = node.value
        except Exception:  # the library fails in many ways on text that its tag does not fit
            if not isinstance(node, self._yaml.ScalarNode):
                raise self._tree.error(path, "has a key that is not text") from None
            raise self._tree.error(path, _misfit(node.tag, node.value)) from None
        if not isinstance(value, Hashable):
            raise self._tree.error(path, "has a key that is not text")
        return value


def _misfit(tag: str, text: str) -> str:
    tag = tag.replace("tag:yaml.org,2002:", "!!")
    return f"has the tag {tag[:60]}, which does not fit {text[:60]!r}; leave the tag out"


def _error(source: str, line: int | None, path: str, problem: str) -> PolicyFileError:
    return PolicyFileError(_placed(source, line, path, problem))


def _placed(source: str, line: int | None, path: str, text: str) -> str:
    # A path may hold any text that a file can; a message is one line of it.
    path = path if path.isprintable() else ascii(path)
    where = source if line is None else f"{source}, line {line}"
    return f"{where}: {path}: {text}" if path else f"{where}: {text}"
