"""Several steps as one decision, in a file."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from penstock import StoreUnavailableError
from penstock.core._steps import Step
from penstock.core._transform import checking
from penstock.stores.sqlite import SqliteStore
from tests.stores import several
from tests.stores.crash import Spender
from tests.stores.exactness import (
    TwoLimits,
    assert_exact_from_processes,
    assert_exact_from_tasks,
    assert_exact_from_threads,
)
from tests.stores.mixtures import follow, requests
from tests.stores.several import NOW, PLENTY, InTurn, OnALoop, charged

PATIENT_MS = 30_000


@pytest.mark.parametrize("seed", range(3))
def test_random_mixtures_are_decided_as_by_the_oracle(path: Path, seed: int) -> None:
    """By two stores on one file in turn, and by an event loop."""
    stores = [SqliteStore(path), SqliteStore(path)]
    assert stores[0].is_atomic("")
    assert min(follow(InTurn(*stores), requests(seed, 250), "sync:")) > 30
    for store in stores:
        store.close()
    loop = OnALoop(SqliteStore(path))
    follow(loop, requests(seed + 100, 250), "async:")
    loop.close()


def test_pauses_race_as_if_in_turn(path: Path) -> None:
    store = SqliteStore(path)
    several.assert_pauses_race_as_if_in_turn(store)
    store.close()


@pytest.mark.parametrize(
    "holds",
    [
        several.assert_a_denial_charges_nothing,
        several.assert_a_key_named_twice_is_charged_twice,
        several.assert_foreign_state_charges_nothing,
    ],
)
def test_the_rule_of_all_or_nothing_holds(path: Path, holds: object) -> None:
    """See each of them."""
    store = SqliteStore(path)
    assert callable(holds)
    holds(store)
    store.close()


def test_a_request_without_steps_is_admitted(path: Path) -> None:
    """There is nothing to deny it."""
    store = SqliteStore(path)
    assert store.apply_all([], NOW) == []
    assert asyncio.run(store.aapply_all([], NOW)) == []
    store.close()


def test_two_limits_admit_exactly_from_threads(path: Path) -> None:
    """50 of 200, and both keys charged with 50."""
    assert_exact_from_threads(partial(SqliteStore, path, timeout_ms=PATIENT_MS), TwoLimits)


def test_two_limits_admit_exactly_from_tasks(path: Path) -> None:
    """50 of 200, and both keys charged with 50."""
    assert_exact_from_tasks(partial(SqliteStore, path, timeout_ms=PATIENT_MS), TwoLimits)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_two_limits_admit_exactly_from_processes(path: Path, mode: str) -> None:
    """50 of 200 in four processes, and both keys charged with 50."""
    make_store = partial(SqliteStore, path, timeout_ms=PATIENT_MS)
    assert_exact_from_processes(make_store, mode, TwoLimits)


def test_what_was_admitted_was_charged_to_the_unit(path: Path) -> None:
    """Checks of one key, of many and of several as one share transactions."""
    stores = [SqliteStore(path, timeout_ms=PATIENT_MS) for _ in range(3)]
    several.assert_what_was_admitted_was_charged(stores)


def test_a_look_sees_both_or_neither(path: Path) -> None:
    """It reads without the lock, and still at one instant."""
    writer, reader = (SqliteStore(path, timeout_ms=PATIENT_MS) for _ in range(2))
    several.assert_a_look_sees_both_or_neither(writer, reader)
    writer.close()
    reader.close()


def test_a_look_waits_for_nobody(path: Path) -> None:
    """Not for another process that holds the lock."""
    store = SqliteStore(path, timeout_ms=100)
    steps = [Step(key, checking(PLENTY)) for key in "ab"]
    store.apply_all(steps, NOW)
    operator = sqlite3.connect(path, isolation_level=None)
    operator.execute("BEGIN IMMEDIATE")
    looked = store.apply_all([step._replace(cost=0) for step in steps], NOW)
    assert [decision.remaining for decision in looked] == [PLENTY.limit - 1] * 2
    with pytest.raises(StoreUnavailableError, match="nothing was charged"):
        store.apply_all(steps, NOW)
    operator.execute("ROLLBACK")
    operator.close()
    assert [charged(store, key) for key in "ab"] == [1, 1]
    store.close()


def test_a_killed_process_leaves_both_keys_charged_or_neither(path: Path) -> None:
    """kill -9 between reading and writing, as often as it takes: nothing lost, nothing invented."""
    told = 0
    for _ in range(3):
        with Spender(f"sqlite:///{path}", "a+b") as one, Spender(f"sqlite:///{path}", "b+a") as two:
            one.read(40)
            two.read(20)
            one.kill()
            two.kill()
            told += one.admitted + two.admitted
    store = SqliteStore(path)
    both = {charged(store, key) for key in "ab"}
    store.close()
    assert len(both) == 1
    # Each process can have one that was committed, and not told any more.
    assert told <= both.pop() <= told + 6
