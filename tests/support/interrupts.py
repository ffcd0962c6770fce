"""Exceptions out of nowhere, at every place of the code in turn: not by luck.

A signal handler that raises, or an exception sent to a thread, strikes between two instructions.
Here a trace function does the same: it sees every instruction of the files under test, and raises
at the one it was told. A place is an instruction together with the calls that led there, so that
code which is run from several sides is struck on each of them.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import penstock
from tests.support.effort import LONG, some

__all__ = ["Interrupt", "Place", "SoftTimeoutError", "Striker", "apart", "strike_everywhere"]

T = TypeVar("T")

ROOT = Path(penstock.__file__).parent

Place = tuple[tuple[str, ...], int]
"""The functions that are under way, the outermost first, and the instruction of the last one."""


class Interrupt(BaseException):
    """What Ctrl-C might be."""


class SoftTimeoutError(Exception):
    """What a task queue raises in a task that takes too long."""


class Striker:
    """Watches the files below `parts`, such as "_queueing" or "stores/sqlite", in one thread, and
    raises when it comes to the place, once. Places are lines, or `by_opcode` bytecodes, which they
    always are in a long run."""

    def __init__(
        self,
        parts: tuple[str, ...],
        place: Place | None = None,
        error: type[BaseException] = Interrupt,
        *,
        by_opcode: bool = False,
    ) -> None:
        self._by_opcode = by_opcode or LONG
        self._folders = tuple(str(ROOT / part) for part in parts)
        self._place = place
        self._error = error
        self._paths: dict[FrameType, tuple[str, ...]] = {}
        self.seen: dict[Place, None] = {}
        self.has_struck = False

    def run(self, work: Callable[[], Any]) -> Any:
        """Do the work under watch."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return work()
        finally:
            sys.settrace(before)
            self._paths.clear()

    def _enter(self, frame: FrameType, event: str, _argument: Any) -> Any:
        code = frame.f_code
        if self.has_struck or not code.co_filename.startswith(self._folders):
            return None
        frame.f_trace_opcodes = self._by_opcode
        frame.f_trace_lines = not self._by_opcode
        self._paths[frame] = (*self._path_above(frame), _name(code))
        return self._step

    def _path_above(self, frame: FrameType) -> tuple[str, ...]:
        above = frame.f_back
        while above is not None:
            if above in self._paths:
                return self._paths[above]
            above = above.f_back
        return ()

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event in ("opcode", "line") and not self.has_struck:
            place = (self._paths.get(frame, ()), frame.f_lasti)
            self.seen[place] = None
            if place == self._place:
                self.has_struck = True
                raise self._error
        return self._step


def _name(code: CodeType) -> str:
    return f"{Path(code.co_filename).stem}.{code.co_name}"


def apart(work: Callable[[], T]) -> T:
    """Do work that is struck in a thread of its own, and clear up behind it.

    Struck at the end of an `except`, the interpreter believes for as long as the thread lives that
    the exception is still being handled, and keeps all that it refers to: connections and calls
    that were cut off, about which the collector would complain in some later test.
    """
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(work)
        try:
            return run.result()
        finally:
            pool.shutdown()
            del run
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gc.collect()


Strike = Callable[[Callable[[], Any]], bool]
"""Does some work, and says whether it was interrupted."""


def strike_everywhere(
    parts: tuple[str, ...],
    scenario: Callable[[Strike], None],
    error: type[BaseException] = Interrupt,
    *,
    least: int,
    by_opcode: bool = False,
    one_in: int = 1,
) -> int:
    """Run the scenario once for each place that its work comes by, with an interrupt there. At
    `least` so many places must be struck, lest nothing be shown. Returns how many were. Outside of
    a long run, `one_in` so many places is struck, and of `least` the same part."""
    return apart(lambda: _strike_everywhere(parts, scenario, error, least, by_opcode, one_in))


def _strike_everywhere(
    parts: tuple[str, ...],
    scenario: Callable[[Strike], None],
    error: type[BaseException],
    least: int,
    by_opcode: bool,
    one_in: int,
) -> int:
    seen: dict[Place, None] = {}
    for _ in range(4):
        watcher = Striker(parts, by_opcode=by_opcode)
        scenario(_striking(watcher))
        seen.update(watcher.seen)
    struck = 0
    places = some(seen, one_in)
    for place in places:
        striker = Striker(parts, place, error, by_opcode=by_opcode)
        try:
            scenario(_striking(striker))
        except BaseException as failure:
            raise AssertionError(f"interrupted at {_shown(place)}") from failure
        struck += striker.has_struck
    least = least * len(places) // len(seen)
    assert struck >= least, f"only {struck} of {len(places)} places were struck"
    return struck


def _striking(striker: Striker) -> Strike:
    def strike(work: Callable[[], Any]) -> bool:
        try:
            striker.run(work)
        except (Interrupt, SoftTimeoutError):
            assert striker.has_struck
            return True
        assert not striker.has_struck, "the interrupt was swallowed"
        return False

    return strike


def _shown(place: Place) -> str:
    path, instruction = place
    return f"{' > '.join(path)} @ {instruction}"
