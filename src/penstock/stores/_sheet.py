"""How a connection to a backend fails: one exception for all stores.

It never leaves a store: there it becomes `store_unavailable`, with a word on what was charged.

What a transaction has read and is going to write, for stores that keep records.

A `Call` is one `apply` or `apply_many` on its way. A `Sheet` runs calls one after the other on the
records of their keys: each sees what those before it have written, so a whole queue of callers
can share one transaction, and a hot key is read and written once for all of them. Nothing here
does I/O. A call whose transform raises writes nothing, and takes nobody else down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Any

from .._queueing import QueuedCall
from ..core._errors import PenstockError
from ..core._foreign_clocks import FOREIGN_CLOCKS
from ..core._transform import Transform
from ._record import keep_ms, pack, restore

__all__ = ["Call", "ConnectionFailedError", "Sheet", "Write", "telling_of_others"]


class ConnectionFailedError(Exception):
    """A backend could not be asked, or its answer was not heard.

    `may_have_run` is False only when it is certain that the request had no effect and will have
    none; `again` when another attempt within the same call may fare better.
    """

    def __init__(self, text: str, *, may_have_run: bool, again: bool = False) -> None:
        super().__init__(text)
        self.may_have_run = may_have_run
        self.again = again


Write = tuple[str | None, int]
"""A record and the instant until which to keep it; a record of None deletes the key."""


class Call(QueuedCall):
    """One `apply_many`: its keys, and the places among them that are still open.

    `writing` are the keys that it would change, as it was decided last. `charged` says whether any
    such change was committed; None, if nobody knows. Whoever commits a sheet keeps it.
    """

    __slots__ = ("charged", "cost", "keys", "now", "open", "results", "transform", "writing")

    def __init__(
        self, keys: Sequence[str], transform: Transform[Any], now: int, cost: int, deadline: float
    ) -> None:
        super().__init__(deadline)
        self.keys: Sequence[str] = keys
        self.transform: Transform[Any] = transform
        self.now: int = now
        self.cost: int = cost
        self.open: Sequence[int] = range(len(keys))
        self.results: list[Any] = [None] * len(keys)
        self.writing: Collection[str] = ()
        self.charged: bool | None = False

    def is_answered(self) -> bool:
        return not self.open

    def fail(self, error: BaseException) -> None:
        self.error: BaseException | None = error
        self.open = ()

    def answer(self) -> list[Any]:
        """The results, or what was raised instead."""
        if self.error is not None:
            raise self.error
        return self.results


def telling_of_others(error: BaseException, charged: bool | None) -> BaseException:
    """The error of a call that has other keys, with a word on what became of those."""
    if charged is False or not isinstance(error, PenstockError):
        return error
    effect = "have been" if charged else "may have been"
    told = copy(error)
    told.args = (f"{error}; other keys of this call {effect} charged", *error.args[1:])
    told.__cause__ = error.__cause__
    return told


class Sheet:
    """`read` gives the record of a key, or None; it is asked once per key."""

    __slots__ = ("_read", "held", "writes")

    def __init__(self, read: Callable[[str], str | None]) -> None:
        self._read = read
        self.held: dict[str, str | None] = {}
        self.writes: dict[str, Write] = {}

    def run(self, call: Call) -> None:
        """Fill in the results of the places that are open, or the error."""
        call.error = None
        call.writing = ()
        # Outside of the `try`: a read that fails is a fault of the store, not of this call.
        for place in call.open:
            key = call.keys[place]
            if key not in self.held:
                self.held[key] = self._read(key)
        try:
            results, layer = self._decide(call)
        except PenstockError as error:
            call.error = error
        except Exception as error:
            # Strategies are pure. What does not happen again was an interrupt of this thread,
            # which may be serving somebody else's call, and is to be stopped by it.
            if not self._fails(call):
                raise
            call.error = error
        else:
            for place, result in zip(call.open, results, strict=True):
                call.results[place] = result
            call.writing = layer
            self.writes.update(layer)

    def _decide(self, call: Call) -> tuple[list[Any], dict[str, Write]]:
        layer: dict[str, Write] = {}
        results = []
        for place in call.open:
            results.append(self._step(call.keys[place], call, layer))  # noqa: PERF401 - mostly one
        return results, layer

    def _fails(self, call: Call) -> bool:
        try:
            self._decide(call)
        except Exception:
            return True
        return False

    def _step(self, key: str, call: Call, layer: dict[str, Write]) -> Any:
        written = layer.get(key) or self.writes.get(key)
        raw = self.held[key] if written is None else written[0]
        transform, now = call.transform, call.now
        outcome = transform.run(restore(raw, key, transform, now), now, call.cost)
        if not outcome.persist:
            FOREIGN_CLOCKS.look_at(outcome.result, transform, call.cost)
        elif outcome.state is None:
            layer[key] = (None, 0)
        else:
            text = pack(transform.kind, outcome.state, now + outcome.ttl_ms)
            layer[key] = (text, now + keep_ms(outcome.ttl_ms))
        return outcome.result
