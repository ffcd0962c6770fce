"""How what holds locks, connections and counts is pickled: as the call that it was made by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["MadeBy"]


class MadeBy:
    """A call. Its text says nothing of the arguments: there may be a password among them."""

    __slots__ = ("_arguments", "_make", "_options")

    def __init__(self, make: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        self._make = make
        self._arguments = arguments
        self._options = options

    def reduced(self) -> tuple[Any, ...]:
        """For the `__reduce__` of what was made."""
        return _make_again, (self._make, self._arguments, self._options)

    def __repr__(self) -> str:
        return f"<MadeBy {self._make.__qualname__}>"


def _make_again(make: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
    return make(*arguments, **options)
