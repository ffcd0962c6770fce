"""Objects that belong to the process that made them, and cannot be copied.

A charge or a slot stands for units that were taken in a store. Each copy of it could give them
back: a pickle in another process, a deep copy, or the memory of a forked child. So copies are
refused, and a child cannot use what its parent holds. The original goes on working.
"""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from .._queueing import fork
from ._errors import UnsupportedError

__all__ = ["Owned"]


class Owned:
    """The base of objects that hold something in a store."""

    __slots__ = ("_owner",)

    _owner: object
    """The mark of the process that made the object: see `fork._generation`."""

    def _own(self) -> None:
        """Make this process the owner."""
        self._owner = fork._generation

    @property
    def _is_inherited(self) -> bool:
        """Whether this process was forked after the object was made, so that its parent has it."""
        return self._owner is not fork._generation

    def _require_owner(self) -> None:
        if self._is_inherited:
            raise UnsupportedError(
                f"this {type(self).__name__} belongs to the process that forked this one, which "
                "goes on with it: settle and release it there, and reserve another one here"
            )

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        raise UnsupportedError(
            f"a {type(self).__name__} cannot be pickled or copied, because each copy could give "
            "back what it holds; end it in the process that made it, or reserve another one"
        )
