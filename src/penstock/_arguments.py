"""The key and the cost of a call of a function, computed from its arguments.

A key is a format string of the arguments, such as `"{user}"`, or a function of them; a cost is a
number or a function. Format strings are parsed, and their fields looked up among the function's
parameters, when the function is decorated: a misspelt name is an error at import, not at the first
call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any

from ._limits import Limits
from .core._validation import reject, require_int, require_key, shown

if TYPE_CHECKING:
    from inspect import Signature

__all__ = [
    "Arguments",
    "Cost",
    "Key",
    "Question",
    "checked_cost",
    "checked_key",
    "fields_of",
    "for_all",
    "is_async",
    "require_plain",
]

KeyPart = str | Callable[..., Any]
"""A format string of the arguments, such as `"{user}"`, or a function of them."""

Key = KeyPart | Mapping[str, KeyPart]
"""One key for all limits, or a key for each by the name of the limit."""

Cost = int | Mapping[str, int] | Callable[..., Any]

_EVERYBODY = "all"
"""The key when none is given: all calls share one limit."""

_format = Formatter()


class Arguments:
    """The parameters of a function: checks format strings, and reads the arguments of calls."""

    def __init__(self, signature: Signature, name: str) -> None:
        self.name: str = name
        self._signature = signature
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        self._takes_any_name = any(kind == kind.VAR_KEYWORD for kind in kinds)

    def require(self, field: str) -> None:
        """Reject a field of a format string that no argument could fill."""
        head = field.replace("[", ".").partition(".")[0]
        there = self._signature.parameters
        if head in there or self._takes_any_name:
            return
        if head.isdigit() and int(head) < len(there):
            return
        names = ", ".join(there) or "none"
        reject(
            f"key names {{{field}}}, which is no parameter of {self.name}; its parameters: {names}"
        )

    def read(
        self, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call in order and by name, defaults included."""
        bound = self._signature.bind(*args, **named)
        bound.apply_defaults()
        found = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind == parameter.VAR_KEYWORD:
                found.update(found.get(parameter.name, {}))
        return bound.args, found


class KeyText:
    """A declared key: plain text, a format string, or a function."""

    def __init__(self, part: KeyPart, arguments: Arguments) -> None:
        self._part = part
        self._arguments = arguments
        self._fields = fields_of(part) if isinstance(part, str) else []
        for field in self._fields:
            arguments.require(field)
        self.plain: str | None = part if isinstance(part, str) and not self._fields else None
        if self.plain is not None:
            require_key(self.plain)

    @property
    def is_async(self) -> bool:
        """Whether the function has to be awaited."""
        return callable(self._part) and is_async(self._part)

    def of(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The key of a call, or an awaitable of it."""
        if self.plain is not None:
            return self.plain
        if callable(self._part):
            return self._part(*args, **named)
        return _format.vformat(self._part, *self._arguments.read(args, named))


class Question:
    """Computes, for one call of a function, the keys and the cost to ask a limiter for."""

    def __init__(self, limiter: Any, arguments: Arguments, key: Key | None, cost: Cost) -> None:
        asked = _EVERYBODY if key is None else key
        self._names = _keyed_names(limiter)
        self._cost = cost
        self._name = arguments.name
        if isinstance(asked, Mapping):
            if self._names is None and not hasattr(limiter, "policy"):
                reject(f"key is a mapping, and there is only one limit: give it one key, not {key}")
            # The limits of a service's policy are known to the service only.
            for name in asked:
                if self._names is not None and name not in self._names:
                    reject(f"key names {shown(name)}; the limits with a key are {self._names}")
            self._parts = {name: KeyText(part, arguments) for name, part in asked.items()}
            self._all = None
        else:
            self._all = KeyText(asked, arguments)
            self._parts = {}

    def require_sync(self) -> None:
        """Reject an async key or cost of a function that is not async."""
        parts = [*self._parts.values(), *([] if self._all is None else [self._all])]
        if any(part.is_async for part in parts) or (callable(self._cost) and is_async(self._cost)):
            reject(f"{self._name} is not async, so its key and cost cannot be async functions")

    def of(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        """The keys, in the form that the limiter takes, and the cost."""
        cost = self._cost(*args, **named) if callable(self._cost) else self._cost
        if self._all is not None:
            return self._spread(self._all.of(args, named)), cost
        return {name: part.of(args, named) for name, part in self._parts.items()}, cost

    async def afor(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        """The awaitable twin of `of`."""
        cost = self._cost
        if callable(cost):
            cost = await _settled(cost(*args, **named))
        if self._all is not None:
            return self._spread(await _settled(self._all.of(args, named))), cost
        return {
            name: await _settled(part.of(args, named)) for name, part in self._parts.items()
        }, cost

    def _spread(self, key: str) -> Any:
        return key if self._names is None else dict.fromkeys(self._names, key)


def fields_of(text: str) -> list[str]:
    """The names of the fields in a format string."""
    try:
        found = [field for _, field, _, _ in _format.parse(text) if field is not None]
    except ValueError as error:
        reject(f"key {text!r} is not a valid format string, such as '{{user}}': {error}")
    if "" in found:
        reject(f"key {text!r} has a field without a name: write '{{user}}', or '{{0}}'")
    return found


def for_all(limiter: Any, key: str) -> Any:
    """The same key for all limits of a limiter, in the form that it takes."""
    names = _keyed_names(limiter)
    return key if names is None else dict.fromkeys(names, key)


def is_async(function: Any) -> bool:
    """Whether calling it returns an awaitable."""
    import inspect

    called = getattr(function, "__call__", None)  # noqa: B004 - an object may be async, too
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def require_plain(name: str, function: Any, of: str) -> None:
    """Refuse an option that is neither None nor a plain function of its subject `of`."""
    if function is None:
        return
    if not callable(function):
        reject(f"{name} must be a function of {of}, not {shown(function)}")
    if is_async(function):
        reject(f"{name} must be a plain function of {of}: it is not awaited")


def _keyed_names(limiter: Any) -> list[str] | None:
    if not isinstance(limiter, Limits):
        return None
    return [name for name, limit in limiter.limits.items() if not limit.keyless]


async def _settled(value: Any) -> Any:
    return await value if isinstance(value, Awaitable) else value


def checked_cost(cost: Any) -> Cost:
    """Validate a declared cost."""
    if isinstance(cost, Mapping):
        for name, units in cost.items():
            require_int(f"the cost of {name!r}", units, 0)
        return cost
    return cost if callable(cost) else require_int("cost", cost, 1)


def checked_key(key: Any) -> Key | None:
    """Validate a declared key."""
    parts = key.values() if isinstance(key, Mapping) else [] if key is None else [key]
    for part in parts:
        if isinstance(part, str):
            fields_of(require_key(part))
        elif not callable(part):
            reject(
                "key must be a format string such as '{user}', a function of the arguments, or a "
                f"mapping of limit names to these, not {shown(part)}"
            )
    found: Key | None = key
    return found
