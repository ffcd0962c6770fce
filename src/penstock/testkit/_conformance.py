"""The conformance kit that every store must pass, for any test runner.

    from penstock.testkit import run_store_conformance

    def test_my_store_conforms():
        run_store_conformance(MyStore)

Pass a factory that makes an empty store; it is called once per case, and the store is closed
afterwards. To run each case as a test of its own, parametrize over `conformance_cases()` and pass
`cases=[case]`. For a store that is approximate under concurrency, pass `atomic=False`.

Time is passed, never read: `apply` takes `now`, so a case about expiry passes a later instant. The
store must use it; turn off the option by which a store uses its server's clock.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

from ..core._store import Store
from ._cases import CASES, Case
from ._steps import ConformanceError, perform, perform_async

__all__ = [
    "Case",
    "ConformanceError",
    "arun_store_conformance",
    "conformance_cases",
    "run_store_conformance",
]


def conformance_cases(*, atomic: bool = True) -> list[Case]:
    """The cases by name, in order; without those that need atomicity if `atomic` is False."""
    return [case for case in CASES if atomic or not case.needs_atomicity]


def run_store_conformance(
    make_store: Callable[[], Store], *, atomic: bool = True, cases: Iterable[Case] | None = None
) -> None:
    """Hold the sync calls of a store to the contract; ConformanceError at the first fault."""
    for case in conformance_cases(atomic=atomic) if cases is None else cases:
        store = make_store()
        try:
            _require_passed_time(case, store)
            perform(store, case.name, case.flow())
        finally:
            store.close()


async def arun_store_conformance(
    make_store: Callable[[], Store | Awaitable[Store]],
    *,
    atomic: bool = True,
    cases: Iterable[Case] | None = None,
) -> None:
    """The awaitable twin, for the async calls. The factory may be a coroutine function."""
    for case in conformance_cases(atomic=atomic) if cases is None else cases:
        made = make_store()
        store = await made if inspect.isawaitable(made) else made
        try:
            _require_passed_time(case, store)
            await perform_async(store, case.name, case.flow())
        finally:
            await store.aclose()


def _require_passed_time(case: Case, store: Store) -> None:
    if store.reads_own_clock:
        raise ConformanceError(
            case.name,
            f"{type(store).__name__} reads its own clock, so instants cannot be passed to it; "
            "make it with the option that turns this off",
        )
