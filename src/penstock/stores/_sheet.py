"""What a transaction has read and will write, for stores that keep records.

A `Call` is one `apply`, `apply_many` or `apply_all`. A `Sheet` runs calls one after the other on
the records of their keys: each sees what those before it have written. So a whole queue of callers
can share one transaction, and a hot key is read and written once for all of them. Nothing here does
I/O. A call whose transform raises writes nothing and does not affect the others.

`ConnectionFailedError` is the failure of a connection, for all stores. It never leaves a store:
there it becomes `store_unavailable`, which says whether something may have been charged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import partial
from typing import Any

from .._queueing import QueuedCall
from ..core._clock import FOREIGN_CLOCKS
from ..core._errors import PenstockError
from ..core._steps import as_they_stand
from ..core._transform import Transform
from .record import keep_ms, pack, restore

__all__ = ["AnyStep", "Call", "ConnectionFailedError", "Sheet", "Write", "telling_of_others"]


class ConnectionFailedError(Exception):
    """A backend could not be reached, or its answer was lost.

    `may_have_run` is False only if it is certain that the request has had no effect and will have
    none; `again` says that another attempt within the same call may succeed. `is_overload`: the
    backend works, and the request has waited behind others of this process until its deadline.
    """

    is_overload: bool = False

    def unsent(self) -> ConnectionFailedError:
        """The same failure, for a request that was not sent because of it."""
        failure = ConnectionFailedError(str(self), may_have_run=False, again=self.again)
        failure.is_overload = self.is_overload
        return failure

    def __init__(self, text: str, *, may_have_run: bool, again: bool = False) -> None:
        super().__init__(text)
        self.may_have_run = may_have_run
        self.again = again


Write = tuple[str | None, int]
"""A record and the instant until which to keep it; a record of None deletes the key."""


AnyStep = tuple[str, Transform[Any], int, bool]
"""A `Step`, or a plain tuple of the same, which is cheaper to make."""


class Call(QueuedCall):
    """Steps of one caller, and the places among them that are still open.

    One that `is_whole` is one decision, by the rule of `decide_all`, and open as a whole or not at
    all. Any other is a step per key, each for itself.

    `writing` are the keys that it would change, as it was decided last. `charged` says whether any
    such change was committed; None, if nobody knows. Whoever commits a sheet keeps it.
    """

    __slots__ = ("charged", "is_whole", "now", "open", "results", "steps", "writing")

    def __init__(
        self, steps: Sequence[AnyStep], now: int, deadline: float, *, is_whole: bool = False
    ) -> None:
        super().__init__(deadline)
        self.steps: Sequence[AnyStep] = steps
        self.is_whole: bool = is_whole
        self.now: int = now
        self.open: Sequence[int] = range(len(steps))
        self.results: list[Any] = [None] * len(steps)
        self.writing: Collection[str] = ()
        self.charged: bool | None = False

    def is_all_of(self, roles: Collection[str]) -> bool:
        """Whether each step has one of the roles."""
        for step in self.steps:  # noqa: SIM110 - nearly always one
            if step[1].role not in roles:
                return False
        return True

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
            key = call.steps[place][0]
            if key not in self.held:
                self.held[key] = self._read(key)
        try:
            results, layer = self._decide(call)
        except PenstockError as error:
            call.error = error
        except Exception as error:
            # Strategies are pure. An exception that does not occur again was an interrupt of this
            # thread, which may be serving the call of another, so it is raised in this thread.
            if not self._fails(call):
                raise
            call.error = error
        else:
            for place, result in zip(call.open, results, strict=True):
                call.results[place] = result
            call.writing = layer
            self.writes.update(layer)

    def _decide(self, call: Call) -> tuple[list[Any], dict[str, Write]]:
        """`decide_all` on records: a key that is named twice has to hold what both can read."""
        layer: dict[str, Write] = {}
        results = []
        admitted = True
        now = call.now
        for place in call.open:
            key, transform, cost, shadow = call.steps[place]
            written = layer.get(key) or self.writes.get(key)
            raw = self.held[key] if written is None else written[0]
            outcome = transform.run(restore(raw, key, transform, now), now, cost)
            if not outcome.persist:
                FOREIGN_CLOCKS.look_at(outcome.result, transform, cost)
            elif outcome.state is None:
                layer[key] = (None, 0)
            else:
                text = pack(transform.kind, outcome.state, now + outcome.ttl_ms)
                layer[key] = (text, now + keep_ms(outcome.ttl_ms))
            if call.is_whole and not (shadow or transform.admits(outcome.result)):
                admitted = False
            results.append(outcome.result)
        if admitted:
            return results, layer
        steps = [call.steps[place] for place in call.open]
        return as_they_stand(steps, results, partial(self._found, now), lambda _key: now), {}

    def _found(self, now: int, key: str, transform: Transform[Any]) -> Any:
        """The state of a key as earlier calls have left it."""
        written = self.writes.get(key)
        raw = self.held[key] if written is None else written[0]
        return restore(raw, key, transform, now)

    def _fails(self, call: Call) -> bool:
        try:
            self._decide(call)
        except Exception:
            return True
        return False
