"""The API reference: a page for each public module, with whatever its `__all__` lists.

A name is described where it is met first, and the pages of other modules that list it, too, link
there. A public name, or a public member of one, that has no docstring is a warning, and so ends the
build.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging

__all__ = ["INTERNAL", "Reference", "setup"]

_log = logging.getLogger(__name__)

INTERNAL: dict[str, str] = {
    "__main__": "python -m penstock",
    "accel": "chosen by itself",
    "cli": "what the command runs",
    "core": "what is public of it, the package itself and `stores` and `strategies` export",
    "integrations.django.apps": "what Django finds by itself",
    "integrations.django.management": "what Django finds by itself",
    "service": "what `penstock serve` runs",
    "stores.cas": "what several stores share",
    "stores.rest": "what several stores share",
    "wire": "generated messages",
}
"""Packages that users do not import from, and why; a new one is public until it is listed here."""

_KINDS = ("function", "class", "exception", "data")
_TITLES = {
    "function": "Functions",
    "class": "Classes",
    "exception": "Exceptions",
    "data": "Values",
}


class Reference:
    """The public names of a package, and the page of each of its public modules."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.modules = {name: importlib.import_module(name) for name in _public_modules(package)}
        self.places: dict[str, str] = {}
        """Public name to the full name under which it is described."""
        self._ids: dict[int, str] = {}
        for module, name, value in self._listed():
            full = f"{module}.{name}"
            self.places[full] = self._ids.setdefault(id(value), full)

    def _listed(self) -> Iterator[tuple[str, str, Any]]:
        for name, module in self.modules.items():
            for listed in module.__all__:
                yield name, listed, getattr(module, listed)

    def place_of(self, target: str) -> str | None:
        """Where something is described that is called `target` inside of the package."""
        if target in self.places:
            return self.places[target]
        value = _resolved(target)
        if value is not None and id(value) in self._ids:
            return self._ids[id(value)]
        owner, _, member = target.rpartition(".")
        home = self.place_of(owner) if owner else None
        return f"{home}.{member}" if home else None

    def short_names(self) -> dict[str, str]:
        """What docstrings call a public name, such as `Limiter` or `Limiter.check`."""
        names: dict[str, str] = {}
        for full, place in self.places.items():
            short = full.rpartition(".")[2]
            names.setdefault(short, place)
            value = _resolved(full)
            for member in dir(value) if inspect.isclass(value) else ():
                if not member.startswith("_"):
                    names.setdefault(f"{short}.{member}", f"{place}.{member}")
        return names

    def pages(self) -> dict[str, str]:
        """The text of each page, by its name."""
        entries = "\n".join(f"   {name}" for name in self.modules)
        index = (
            f"{_title('API', '#')}\n"
            "Everything that may be imported, module by module. What is not listed here may change "
            f"without notice.\n\n.. toctree::\n   :maxdepth: 1\n\n{entries}\n"
        )
        return {"index": index, **{name: self._page(name) for name in self.modules}}

    def bare_fields(self) -> list[str]:
        """Fields of public classes that neither a docstring of their own nor that of their class,
        in backticks, explains."""
        bare = []
        for place in dict.fromkeys(self.places.values()):
            value = _resolved(place)
            if not inspect.isclass(value):
                continue
            told = ModuleAnalyzer.for_module(value.__module__).find_attr_docs()
            bare += [
                f"{place}.{name}"
                for name in inspect.get_annotations(value)
                if not name.startswith("_")
                # What a class of ours declares, those that derive from it need not explain again.
                and not any(name in inspect.get_annotations(base) for base in value.__mro__[1:])
                and (value.__qualname__, name) not in told
                and f"`{name}`" not in (value.__doc__ or "")
            ]
        return bare

    def _page(self, module: str) -> str:
        described: dict[str, list[str]] = {kind: [] for kind in _KINDS}
        elsewhere = []
        for name in sorted(self.modules[module].__all__, key=str.lower):
            full = f"{module}.{name}"
            if self.places[full] != full:
                elsewhere.append(f"- :py:obj:`{name} <{self.places[full]}>`")
                continue
            kind = _kind(getattr(self.modules[module], name))
            described[kind].append(
                self._data(module, name) if kind == "data" else f".. auto{kind}:: {full}\n"
            )
        parts = [_title(module, "#"), f".. automodule:: {module}\n   :no-members:\n"]
        for kind, entries in described.items():
            if entries:
                parts += [_title(_TITLES[kind], "*"), *entries]
        if elsewhere:
            parts += [_title("Also here", "*"), "\n".join(elsewhere), ""]
        return "\n".join(parts)

    def _data(self, module: str, name: str) -> str:
        """A value says nothing about itself; the line below its assignment does."""
        home = _home(module, name)
        lines = ModuleAnalyzer.for_module(home).find_attr_docs().get(("", name), [])
        if not any(lines):
            _log.warning("%s.%s has no docstring below its assignment", home, name)
        value = getattr(self.modules[module], name)
        # An alias of a type is not described by the type that it has itself.
        kind = type(value).__name__ if isinstance(value, (int, str, tuple)) else ""
        options = f"   :type: {kind}\n" if kind else ""
        text = "\n".join(f"   {line}" for line in lines)
        return f".. py:data:: {module}.{name}\n{options}\n{text}\n"


def _public_modules(package: str) -> Iterator[str]:
    root = importlib.import_module(package)
    yield package
    found = set()
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        inner = info.name.removeprefix(f"{package}.")
        if any(inner == each or inner.startswith(f"{each}.") for each in INTERNAL):
            continue
        if any(part.startswith("_") for part in inner.split(".")):
            continue
        found.add(info.name)
    for name in sorted(found):
        if hasattr(importlib.import_module(name), "__all__"):
            yield name


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "data"


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"


def _home(module: str, name: str) -> str:
    """The module that assigns a name which others import from it."""
    loaded: ModuleType = importlib.import_module(module)
    for node in ast.walk(ast.parse(Path(str(loaded.__file__)).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            origin = importlib.util.resolve_name(
                "." * node.level + (node.module or ""), loaded.__package__
            )
            return _home(origin, name)
    return module


def _resolved(target: str) -> Any:
    """The object behind a dotted name, or None."""
    parts = target.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            value = getattr(value, part, None)
        return value
    return None


def _write(app: Sphinx) -> None:
    """Before the sources are listed: the pages are sources like any other."""
    reference = Reference(app.config.api_package)
    app.api_reference = reference  # type: ignore[attr-defined]
    app.api_names = reference.short_names()  # type: ignore[attr-defined]
    for name in reference.bare_fields():
        _log.warning("%s has no docstring", name, type="api")
    folder = Path(app.srcdir) / app.config.api_folder
    folder.mkdir(parents=True, exist_ok=True)
    pages = reference.pages()
    for stale in set(folder.glob("*.rst")) - {folder / f"{name}.rst" for name in pages}:
        stale.unlink()
    for name, text in pages.items():
        (folder / f"{name}.rst").write_text(text, encoding="utf-8")


def _refuse_silence(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """A public name that explains nothing is a fault of the build. For fields see `bare_fields`."""
    if what != "attribute" and not any(line.strip() for line in lines):
        _log.warning("%s has no docstring", name, type="api")


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Node | None:
    """Annotations name a class by the module that defines it; it is described elsewhere."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    reference: Reference = app.api_reference  # type: ignore[attr-defined]
    place = reference.place_of(target) if target.startswith(f"{reference.package}.") else None
    if place is None or place == target:
        return None
    domain = env.domains.python_domain
    resolved: nodes.Node | None = domain.resolve_xref(
        env, node["refdoc"], app.builder, "obj", place, node, content
    )
    return resolved


def _name_role(
    role: str, raw: str, text: str, line: int, inliner: Any, *_: Any
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """`Text in backticks`: a link where it is a public name, and code in any case."""
    env = inliner.document.settings.env
    place = env.app.api_names.get(text.removesuffix("()"))
    code = nodes.literal(raw, text)
    if place is None:
        return [code], []
    options = {"refdomain": "py", "reftype": "obj", "reftarget": place, "refdoc": env.docname}
    return [pending_xref(raw, code, refexplicit=True, refwarn=False, **options)], []


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("api_package", "penstock", "env", [str])
    app.add_config_value("api_folder", "docs/api", "env", [str])
    app.add_role("name", _name_role)
    app.connect("builder-inited", _write)
    app.connect("autodoc-process-docstring", _refuse_silence)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
