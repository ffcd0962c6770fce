"""The steps of conformance cases, and the functions that run them, sync and async.

A case is a generator: it yields a step and is sent the store's answer. So each case is written once
and runs with the sync and the async calls.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from ..core._store import Store
from ..core._transform import Transform

__all__ = [
    "Apply",
    "ApplyAll",
    "ApplyMany",
    "ApplyTimed",
    "Close",
    "ConformanceError",
    "Flow",
    "Raised",
    "Reset",
    "Step",
    "Storm",
    "perform",
    "perform_async",
]


class ConformanceError(AssertionError):
    """A store broke the contract. `case` names the case, `seen` says what happened."""

    def __init__(self, case: str, seen: str) -> None:
        super().__init__(f"{case}: {seen}")
        self.case = case
        self.seen = seen

    def __reduce__(self) -> tuple[type[ConformanceError], tuple[str, str]]:
        return type(self), (self.case, self.seen)


@dataclass(frozen=True, slots=True)
class Apply:
    """One `apply`. Sends back its result, or what it raised if that was to be expected."""

    key: str
    transform: Transform[Any]
    now: int
    cost: int = 1
    may_raise: bool = False


@dataclass(frozen=True, slots=True)
class ApplyTimed:
    """One `apply_timed`. Sends back the result and the instant."""

    key: str
    transform: Transform[Any]
    now: int
    cost: int = 1


@dataclass(frozen=True, slots=True)
class ApplyMany:
    """One `apply_many`. Sends back the list of results."""

    keys: tuple[str, ...]
    transform: Transform[Any]
    now: int
    cost: int = 1


@dataclass(frozen=True, slots=True)
class ApplyAll:
    """One `apply_all`. Sends back the list of results."""

    steps: tuple[Any, ...]
    now: int
    may_raise: bool = False


@dataclass(frozen=True, slots=True)
class Storm:
    """The same call from `callers` threads or tasks at once. Sends back all results."""

    apply: Apply | ApplyAll
    callers: int


@dataclass(frozen=True, slots=True)
class Reset:
    """One `reset`."""

    key: str


@dataclass(frozen=True, slots=True)
class Close:
    """One `close`."""


@dataclass(frozen=True, slots=True)
class Raised:
    """Sent back in place of a result."""

    error: Exception


Step = Apply | ApplyAll | ApplyMany | ApplyTimed | Storm | Reset | Close
Flow = Generator[Step, Any, None]


def perform(store: Store, case: str, flow: Flow) -> None:
    """Run a case on the sync calls of a store."""
    step = _next(case, flow, None)
    while step is not None:
        try:
            answer = _do(store, step)
        except Exception as error:
            answer = _raised(case, step, error)
        step = _next(case, flow, answer)


async def perform_async(store: Store, case: str, flow: Flow) -> None:
    """Run a case on the async calls of a store."""
    step = _next(case, flow, None)
    while step is not None:
        try:
            answer = await _ado(store, step)
        except Exception as error:
            answer = _raised(case, step, error)
        step = _next(case, flow, answer)


def _next(case: str, flow: Flow, answer: Any) -> Step | None:
    """The next step; None at the end. What the case found wrong gets the case's name."""
    try:
        return flow.send(answer)
    except StopIteration:
        return None
    except AssertionError as fault:
        raise ConformanceError(case, str(fault)) from None


def _raised(case: str, step: Step, error: Exception) -> Raised:
    if isinstance(step, (Apply, ApplyAll)) and step.may_raise:
        return Raised(error)
    raise ConformanceError(case, f"the store raised {error!r} on {step}") from error


def _do(store: Store, step: Step) -> Any:
    if isinstance(step, Apply):
        return store.apply(step.key, step.transform, step.now, step.cost)
    if isinstance(step, ApplyTimed):
        return store.apply_timed(step.key, step.transform, step.now, step.cost)
    if isinstance(step, ApplyAll):
        return store.apply_all(step.steps, step.now)
    if isinstance(step, ApplyMany):
        return store.apply_many(step.keys, step.transform, step.now, step.cost)
    if isinstance(step, Storm):
        return _storm(store, step)
    if isinstance(step, Reset):
        return store.reset(step.key)
    return store.close()


async def _ado(store: Store, step: Step) -> Any:
    if isinstance(step, Apply):
        return await store.aapply(step.key, step.transform, step.now, step.cost)
    if isinstance(step, ApplyTimed):
        return await store.aapply_timed(step.key, step.transform, step.now, step.cost)
    if isinstance(step, ApplyAll):
        return await store.aapply_all(step.steps, step.now)
    if isinstance(step, ApplyMany):
        return await store.aapply_many(step.keys, step.transform, step.now, step.cost)
    if isinstance(step, Storm):
        calls = (_ado(store, step.apply) for _ in range(step.callers))
        return list(await asyncio.gather(*calls))
    if isinstance(step, Reset):
        return await store.areset(step.key)
    return await store.aclose()


def _storm(store: Store, step: Storm) -> list[Any]:
    """All callers start together; the first fault among them is the storm's."""
    gate = threading.Barrier(step.callers)
    results: list[Any] = []
    errors: list[Exception] = []

    def call() -> None:
        gate.wait()
        try:
            results.append(_do(store, step.apply))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(step.callers)]
    # Threads take turns as often as the interpreter can: a gap of a few instructions is enough for
    # somebody to get in between.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    if errors:
        raise errors[0]
    return results
