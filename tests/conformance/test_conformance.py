"""One matrix: kit x store x mode. A new store adds one line to STORES."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock import Store, accelerated
from penstock.testkit import (
    Case,
    ConformanceError,
    _cases,
    arun_store_conformance,
    conformance_cases,
    run_store_conformance,
)
from tests.conformance.broken_stores import (
    BROKEN,
    AsyncOnlyStore,
    DictStore,
    HalfOpenAsyncStore,
    NonAtomicAsyncStore,
    NonAtomicStore,
)
from tests.stores import edge
from tests.stores.postgres.live import open_empty as open_empty_postgres
from tests.stores.redis.live import open_empty
from tests.stores.sqlite.fresh import FreshSqliteStore
from tests.support.effort import LONG
from tests.support.helpers import PATHS, make_store

Factory = Callable[[], Store]

# name: (factory, modes)
STORES: dict[str, tuple[Factory, str]] = {
    **{f"memory-{path}": (lambda path=path: make_store(path), "both") for path in PATHS},
    **{
        f"memory-{path}-bounded": (lambda path=path: make_store(path, 1_000, "deny"), "both")
        for path in PATHS
    },
    "sqlite": (FreshSqliteStore, "both"),
    "postgres": (open_empty_postgres, "both"),
    "postgres-asyncpg": (partial(open_empty_postgres, "asyncpg"), "async"),
    "dict": (DictStore, "sync"),
    "dict-async": (AsyncOnlyStore, "async"),
    **{name: (partial(open_empty, name), "both") for name in ("valkey", "redis8", "cluster")},
    **{name: (partial(edge.open_empty, name), "both") for name in (*edge.EXACT, "dynamodb-local")},
}
# Those that say of themselves that they are approximate: all promises but the atomic one.
APPROXIMATE: dict[str, Factory] = {"workers-kv": partial(edge.open_empty, "workers-kv")}
CASES = conformance_cases()
# What a server decides, or a record, is the same on both paths.
IN_PROCESS = ("memory", "dict")


def _stores(mode: str) -> list[Any]:
    return [
        pytest.param(factory, id=name)
        for name, (factory, modes) in STORES.items()
        if modes in (mode, "both") and (accelerated or name.startswith(IN_PROCESS))
    ]


@pytest.fixture
def _smaller_crowds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server, callers who come in between each other begin anew: the work grows with the
    square of their number. Each store's own tests have 200 of them."""
    if not LONG and not request.node.callspec.id.startswith(IN_PROCESS):
        monkeypatch.setattr(_cases, "CALLERS", 75)


@pytest.mark.usefixtures("_smaller_crowds")
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("factory", _stores("sync"))
def test_a_store_conforms_on_its_sync_calls(factory: Factory, case: Case) -> None:
    """Every promise holds through `apply`, `apply_many`, `reset` and `close`."""
    run_store_conformance(factory, cases=[case])


@pytest.mark.usefixtures("_smaller_crowds")
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("factory", _stores("async"))
def test_a_store_conforms_on_its_async_calls(factory: Factory, case: Case) -> None:
    """Every promise holds through `aapply`, `aapply_many`, `areset` and `aclose`."""
    asyncio.run(arun_store_conformance(factory, cases=[case]))


@pytest.mark.parametrize("case", conformance_cases(atomic=False), ids=str)
@pytest.mark.parametrize("name", APPROXIMATE if accelerated else ())
def test_an_approximate_store_conforms_but_for_atomicity(name: str, case: Case) -> None:
    """Whatever does not take two callers at once holds, sync and async."""
    run_store_conformance(APPROXIMATE[name], cases=[case])
    asyncio.run(arun_store_conformance(APPROXIMATE[name], cases=[case]))


@pytest.mark.parametrize(("factory", "broken_case"), BROKEN)
def test_a_broken_store_fails_on_the_right_case(factory: Factory, broken_case: str) -> None:
    """Each fault is caught, under the name of the promise that it breaks."""
    with pytest.raises(ConformanceError) as caught:
        run_store_conformance(factory)
    assert caught.value.case == broken_case
    assert str(caught.value).startswith(f"{broken_case}: ")


@pytest.mark.parametrize(("factory", "broken_case"), BROKEN)
def test_a_broken_store_fails_every_time(factory: Factory, broken_case: str) -> None:
    """Catching a fault, a race included, is not a matter of luck."""
    [case] = [case for case in CASES if case.name == broken_case]
    for _ in range(10):
        with pytest.raises(ConformanceError):
            run_store_conformance(factory, cases=[case])


def test_a_store_that_loses_updates_between_tasks_fails() -> None:
    """The async kit catches a store that awaits between reading and writing."""
    with pytest.raises(ConformanceError, match=r"^applies atomically: .*expected 200"):
        asyncio.run(arun_store_conformance(NonAtomicAsyncStore))


def test_calls_that_a_store_lacks_fail_the_kit() -> None:
    """Asking for the calls that a store lacks is reported with the store's own words."""
    with pytest.raises(ConformanceError, match="has no aapply"):
        asyncio.run(arun_store_conformance(DictStore))
    with pytest.raises(ConformanceError, match="has no apply"):
        run_store_conformance(AsyncOnlyStore)


def test_an_approximate_store_may_say_so() -> None:
    """With `atomic=False` the cases about concurrency are left out, and only those."""
    run_store_conformance(NonAtomicStore, atomic=False)
    left_out = {case.name for case in CASES} - {c.name for c in conformance_cases(atomic=False)}
    assert left_out == {"applies atomically", "several keys agree in a crowd"}


def test_a_store_that_reads_its_own_clock_is_turned_away() -> None:
    """The kit passes instants, so it says at once when they would be ignored."""

    class Steady(DictStore):
        reads_own_clock = True

    with pytest.raises(ConformanceError, match="reads its own clock"):
        run_store_conformance(Steady)


def test_the_kit_closes_what_it_opened() -> None:
    """One store per case, each closed, also when the case failed."""
    opened: list[Any] = []

    def factory() -> Store:
        opened.append(BROKEN[0].values[0]())  # type: ignore[operator]
        return opened[-1]

    with pytest.raises(ConformanceError):
        run_store_conformance(factory)
    run_store_conformance(DictStore, cases=CASES[:3])
    assert opened
    assert all(store.closed for store in opened)


def test_an_async_factory_may_be_a_coroutine_function() -> None:
    """Some stores can only be made inside a loop."""
    made = []

    async def factory() -> Store:
        made.append(AsyncOnlyStore())
        return made[-1]

    asyncio.run(arun_store_conformance(factory))
    assert len(made) == len(CASES)
    assert all(store.closed for store in made)


def test_a_store_that_breaks_only_when_awaited_fails_the_async_kit() -> None:
    """The modes are tested apart: a good `apply` does not vouch for `aapply`."""
    run_store_conformance(HalfOpenAsyncStore)
    with pytest.raises(ConformanceError, match=r"^isolates keys"):
        asyncio.run(arun_store_conformance(HalfOpenAsyncStore))


def test_every_case_has_a_name_of_its_own_and_a_summary() -> None:
    """A runner can parametrize over the cases and show what each one promises."""
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.summary.endswith(".") for case in CASES)
    assert [str(case) for case in CASES] == [case.name for case in CASES]


def test_the_kit_prints_nothing_and_leaves_no_threads(capsys: pytest.CaptureFixture[str]) -> None:
    """It is a guest in somebody else's test run."""
    before = threading.active_count()
    run_store_conformance(DictStore)
    assert threading.active_count() == before
    assert capsys.readouterr() == ("", "")


def test_the_kit_needs_no_test_runner() -> None:
    """A conformance error is an AssertionError that survives pickling, for parallel runners."""
    import pickle

    error = ConformanceError("isolates keys", "saw 2")
    assert isinstance(error, AssertionError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.case, again.seen, str(again)) == ("isolates keys", "saw 2", str(error))
