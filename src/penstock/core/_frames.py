"""What classes of the same kind have in common: blocks that close, and charges that settle."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TypeVar

from ._decision import Decision

__all__ = ["Closing", "Settling"]


C = TypeVar("C", bound="Closing")
S = TypeVar("S", bound="Settling")


class Closing:
    """Closed at the end of a `with` or `async with` block."""

    def close(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class Settling:
    """A charge, wherever it is kept: `decision` is the answer, and a block that ends settles it as
    it was reserved, or cancels it if an exception ended it."""

    allowed: bool
    decision: Decision

    @property
    def is_open(self) -> bool:
        raise NotImplementedError

    def settle(self, actual: int | Mapping[str, int]) -> bool:
        raise NotImplementedError

    async def asettle(self, actual: int | Mapping[str, int]) -> bool:
        raise NotImplementedError

    def cancel(self) -> bool:
        raise NotImplementedError

    async def acancel(self) -> bool:
        raise NotImplementedError

    @property
    def limit(self) -> int:
        """How much the limit of `decision` allows."""
        return self.decision.limit

    @property
    def remaining(self) -> int:
        """What is left of that limit."""
        return self.decision.remaining

    @property
    def reset_at(self) -> int:
        """From when on nothing of this is remembered."""
        return self.decision.reset_at

    @property
    def retry_after_ms(self) -> int:
        """How long to wait before it is worth asking again; 0 exactly when allowed."""
        return self.decision.retry_after_ms

    def __bool__(self) -> bool:
        return self.allowed

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()
        elif self.is_open:
            self.settle({})

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self.acancel()
        elif self.is_open:
            await self.asettle({})
