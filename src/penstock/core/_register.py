"""The register of strategies by name.

A registered strategy can be named in policy files and inline requests, and appears in OpenAPI, the
wire's manifest, the tables of the docs, the conformance kit and the fuzzers. So a class is checked
first: its declared parameters must be enough to construct it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ._lua import PERIODS
from ._strategy import SNAKE_CASE, Parameter, Strategy
from ._validation import reject, shown

__all__ = [
    "RESERVED_NAMES",
    "find_strategy",
    "register",
    "registered",
    "temporarily_registered",
]


S = TypeVar("S", bound="type[Strategy]")

RESERVED_NAMES = (
    "strategy",
    "token_budget",
    "concurrency",
    "fail",
    "two_tier",
    "federated",
    "limits",
    "plans",
    "overrides",
)
"""Fields of a policy, which no parameter of a strategy may be named like."""

_registered: dict[str, type[Strategy]] = {}
_by_wire_name: dict[str, type[Strategy]] = {}


def register(strategy_class: S) -> S:
    """Register a strategy class under its name, for policy files, inline requests and OpenAPI.

    Returns the class, so it can be used as a decorator. Registering the same class again does
    nothing. Raises `config_invalid` if the class cannot be constructed from its declared
    parameters, or its name is taken.
    """
    cls: Any = strategy_class
    if not isinstance(cls, type) or not issubclass(cls, Strategy):
        reject(f"register takes a subclass of Strategy, not {shown(cls)}")
    if missing := sorted(cls.__abstractmethods__):
        reject(f"{cls.__qualname__} cannot be registered without {', '.join(missing)}")
    if not re.fullmatch(SNAKE_CASE, cls.name):
        reject(f"the name of {cls.__qualname__} must be in snake_case, not {shown(cls.name)}")
    if not re.fullmatch("[a-z][A-Za-z0-9]*", cls.wire_name):
        reject(f"the wire_name of {cls.name} must be in camelCase, not {shown(cls.wire_name)}")
    _require_parameters(cls)
    _require_constructor(cls)
    _require_lua(cls)
    holder = find_strategy(cls.name) or find_strategy(cls.wire_name)
    if holder is not None and holder is not cls:
        reject(
            f"the name {cls.name!r} is taken by {holder.__module__}.{holder.__qualname__}; "
            f"give {cls.__qualname__} another one"
        )
    _registered[cls.name] = _by_wire_name[cls.wire_name] = cls
    return strategy_class


def registered() -> tuple[type[Strategy], ...]:
    """All registered strategies, in the order of registration."""
    return tuple(_registered.values())


def find_strategy(spelling: str) -> type[Strategy] | None:
    """The strategy of that name, in snake_case or in camelCase."""
    return _registered.get(spelling) or _by_wire_name.get(spelling)


@contextmanager
def temporarily_registered(*classes: type[Strategy]) -> Iterator[None]:
    """For tests: registers these classes, and restores the register at the end of the block."""
    before, wire_names_before = dict(_registered), dict(_by_wire_name)
    try:
        for cls in classes:
            register(cls)
        yield
    finally:
        for known, then in ((_registered, before), (_by_wire_name, wire_names_before)):
            known.clear()
            known.update(then)


def _require_parameters(cls: type[Strategy]) -> None:
    given: Any = cls.parameters
    if not isinstance(given, tuple) or not all(isinstance(each, Parameter) for each in given):
        reject(f"parameters of {cls.name} must be a tuple of Parameter, not {shown(given)}")
    taken = set(RESERVED_NAMES)
    for parameter in cls.parameters:
        # A policy may name a span without its unit, too: `window` for `window_ms`.
        names = {parameter.name, parameter.name.removesuffix("_ms")}
        if names & taken:
            reject(
                f"{cls.name} cannot have a parameter {parameter.name!r}: the name is taken by "
                "another parameter or a field of policies"
            )
        taken |= names


# `inspect` takes longer to load than all of the core.
_TAKES_ANY_NAME = 0x08


def _require_constructor(cls: type[Strategy]) -> None:
    """The constructor must take the declared parameters by name, and require no others."""
    code = getattr(cls.__init__, "__code__", None)
    if code is None or cls.__init__ is Strategy.__init__:
        return
    positional = code.co_varnames[1 : code.co_argcount]
    by_name = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    optional = len(getattr(cls.__init__, "__defaults__", None) or ())
    needed = {*positional[: len(positional) - optional], *by_name}
    needed -= (getattr(cls.__init__, "__kwdefaults__", None) or {}).keys()
    declared = {parameter.name for parameter in cls.parameters}
    required = {parameter.name for parameter in cls.parameters if parameter.is_required}
    takes_all = code.co_flags & _TAKES_ANY_NAME or declared <= {*positional, *by_name}
    if not takes_all or not needed <= required:
        names = ", ".join(parameter.name for parameter in cls.parameters) or "nothing"
        reject(
            f"the constructor of {cls.__qualname__} must take its declared parameters by name "
            f"({names}), and require none that is not declared or has a default"
        )


def _require_lua(cls: type[Strategy]) -> None:
    numbers = {each.wire_name for each in cls.parameters if each.kind not in ("choice", "zone")}
    for source in cls.lua_sources:
        if source.by_periods and cls.periods_at is Strategy.periods_at:
            reject(
                f"the Lua source {source.name} takes periods; give {cls.__qualname__} a "
                "periods_at(now) method"
            )
        given = {"now", "cost", *(PERIODS if source.by_periods else ())}
        if strange := set(source.argv) - numbers - given:
            reject(
                f"the Lua source {source.name} of {cls.__qualname__} takes "
                f"{', '.join(sorted(strange))}; it may take now, cost and parameters that are "
                f"numbers: {', '.join(sorted(numbers)) or 'none'}"
            )
        if not os.path.isfile(source.file):
            reject(f"the Lua source {source.name} of {cls.__qualname__} is no file: {source.file}")
