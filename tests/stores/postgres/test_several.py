"""Several steps as one decision, in a table of PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from bench.turns import TurnCounter
from penstock import Store, StoreUnavailableError, fixed_window, gcra, rate_limit
from penstock.core._steps import Step
from penstock.core._transform import asking, checking
from penstock.stores import open_store
from penstock.stores.postgres import PostgresStore, _flows
from tests.servers import FaultProxy, NotReady, Postgres, eventually, require
from tests.stores import several
from tests.stores.crash import WINDOW_MS, Spender
from tests.stores.exactness import (
    TwoLimits,
    assert_exact_from_processes,
    assert_exact_from_tasks,
    assert_exact_from_threads,
)
from tests.stores.mixtures import follow, requests
from tests.stores.postgres.live import PATIENT_MS, new_table, open_empty, running, url_of
from tests.stores.several import NOW, PLENTY, InTurn, OnALoop, charged

each_driver = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


def of_an_older_version() -> str:
    """A table as it was made before several keys could be written at once."""
    table = new_table()
    running().query(f"DROP FUNCTION {table}_swap_all")
    return table


def _steps(*keys: str, cost: int = 1) -> list[Step]:
    return [Step(key, checking(PLENTY), cost) for key in keys]


def _rows(table: str) -> list[str]:
    return [row[0] for row in running().query(f"SELECT convert_from(key, 'UTF8') FROM {table}")]


def test_pauses_race_as_if_in_turn() -> None:
    with closing(open_empty()) as store:
        several.assert_pauses_race_as_if_in_turn(store, rounds=1)


@pytest.mark.parametrize("way", ["as guessed", "stale", "locked", "older table", "server's clock"])
@pytest.mark.parametrize("mode", ["sync", "async", "asyncpg"])
def test_random_mixtures_are_decided_as_by_the_oracle(
    monkeypatch: pytest.MonkeyPatch, mode: str, way: str
) -> None:
    """On every way that a request can take, by every driver."""
    if way == "locked":
        monkeypatch.setattr(_flows, "_GUESSES", 0)
    if way == "server's clock":
        _set_the_clock_of_the_server(monkeypatch)
    url = url_of(
        of_an_older_version() if way == "older table" else new_table(),
        driver="asyncpg" if mode == "asyncpg" else "psycopg",
        timeout_ms=PATIENT_MS,
        use_server_time=str(way == "server's clock").lower(),
    )
    stores = [open_store(url) for _ in range(2 if way == "stale" else 1)]
    assert stores[0].is_atomic("")
    sync = [store if mode == "sync" else OnALoop(store) for store in stores]
    assert min(follow(InTurn(*sync), requests(len(mode) + len(way), 100))) > 15
    for store in sync:
        store.close()


def _set_the_clock_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it show what the caller's shows: everything else about the round trip stays."""
    look = _flows.PostgresFlows._look

    def at_the_caller(self: Any, keys: list[str], known: Any) -> Any:
        yield from look(self, keys, known)
        return self.caller_now

    read_clock = _flows.PostgresFlows._read_clock

    def remembering(self: Any, calls: Any, known: Any) -> Any:
        [self.caller_now] = {call.now for call in calls}
        return read_clock(self, calls, known)

    monkeypatch.setattr(_flows.PostgresFlows, "_look", at_the_caller)
    monkeypatch.setattr(_flows.PostgresFlows, "_read_clock", remembering)


@pytest.mark.parametrize("guesses", [2, 0])
@pytest.mark.parametrize(
    "holds",
    [
        several.assert_a_denial_charges_nothing,
        several.assert_a_key_named_twice_is_charged_twice,
        several.assert_foreign_state_charges_nothing,
    ],
)
def test_the_rule_of_all_or_nothing_holds(
    monkeypatch: pytest.MonkeyPatch, holds: Callable[[Store], None], guesses: int
) -> None:
    """See each of them; in one statement, and in a transaction."""
    monkeypatch.setattr(_flows, "_GUESSES", guesses)
    store = open_empty()
    holds(store)
    assert store.apply_all([], NOW) == []
    store.close()


def _opener(driver: str = "psycopg", table: str = "") -> Any:
    return partial(open_store, url_of(table or new_table(), driver=driver, timeout_ms=PATIENT_MS))


def test_two_limits_admit_exactly_from_threads() -> None:
    """50 of 200, and both keys charged with 50."""
    assert_exact_from_threads(_opener(), TwoLimits)


@each_driver
def test_two_limits_admit_exactly_from_tasks(driver: str) -> None:
    """50 of 200, and both keys charged with 50."""
    assert_exact_from_tasks(_opener(driver), TwoLimits)


@pytest.mark.parametrize(
    ("driver", "mode"), [("psycopg", "sync"), ("psycopg", "async"), ("asyncpg", "async")]
)
def test_two_limits_admit_exactly_from_processes(driver: str, mode: str) -> None:
    """50 of 200 in four processes, and both keys charged with 50."""
    assert_exact_from_processes(_opener(driver), mode, TwoLimits)


def test_two_limits_admit_exactly_in_a_table_of_an_older_version() -> None:
    """Which takes a transaction each time, until the next init."""
    assert_exact_from_processes(_opener(table=of_an_older_version()), "sync", TwoLimits)


@each_driver
@pytest.mark.parametrize("way", ["guessed", "locked", "older table"])
def test_what_was_admitted_was_charged_to_the_unit(
    monkeypatch: pytest.MonkeyPatch, driver: str, way: str
) -> None:
    """Checks of one key, of many and of several as one share statements, and race."""
    if way == "locked":
        monkeypatch.setattr(_flows, "_GUESSES", 0)
    make_store = _opener(driver, of_an_older_version() if way == "older table" else "")
    several.assert_what_was_admitted_was_charged([make_store() for _ in range(3)])


@pytest.mark.parametrize("guesses", [2, 0])
def test_a_look_sees_both_or_neither(monkeypatch: pytest.MonkeyPatch, guesses: int) -> None:
    """It takes no lock, and is still of one instant."""
    monkeypatch.setattr(_flows, "_GUESSES", guesses)
    make_store = _opener()
    writer, reader = make_store(), make_store()
    several.assert_a_look_sees_both_or_neither(writer, reader)
    writer.close()
    reader.close()


@pytest.mark.parametrize("clock", ["caller's", "server's"])
def test_what_was_only_looked_at_counts_as_much(clock: str) -> None:
    """Two requests that each charge the key on which the other looks: one of them is first, also
    where neither key has a row that could be locked, and where both were read before."""
    url = url_of(new_table(), timeout_ms=PATIENT_MS, use_server_time=str(clock != "caller's"))
    stores = [open_store(url) for _ in range(2)]
    strategy = fixed_window(1, WINDOW_MS, "first")
    once, look = checking(strategy), asking(strategy)
    rounds = 60
    admitted: list[list[bool]] = [[] for _ in range(rounds)]
    gate = threading.Barrier(2)

    def ask(number: int) -> None:
        for turn, answers in enumerate(admitted):
            keys = [f"{turn}-a", f"{turn}-b"]
            steps = [Step(keys[number], once), Step(keys[1 - number], look)]
            gate.wait(60)
            answers.append(all(stores[number].apply_all(steps, NOW)))

    _run_all([partial(ask, number) for number in range(2)])
    assert all(sum(answers) == 1 for answers in admitted)
    for store in stores:
        store.close()


def _run_all(jobs: list[Callable[[], None]]) -> None:
    """In a thread each; what one of them raises is raised here."""
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("table", ["this version", "older version"])
def test_nobody_waits_in_a_circle(monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    """Keys in opposite orders, new ones too, by calls of all kinds: a deadlock would be an error,
    since conflicts are not tried again here."""
    monkeypatch.setattr(_flows, "CONFLICTS", frozenset())
    make_store = _opener(table=new_table() if table == "this version" else of_an_older_version())
    stores = [make_store() for _ in range(4)]

    def ask(number: int) -> None:
        store = stores[number]
        for turn in range(60):
            # The hot key stands between those that nobody has used before.
            keys = [f"a{turn}", "hot", f"z{turn}"]
            ordered = keys if number % 2 else keys[::-1]
            if (turn + number) % 3:
                store.apply_all(_steps(*ordered), NOW)
            else:
                store.apply_many(ordered, checking(PLENTY), NOW, 1)

    _run_all([partial(ask, number) for number in range(4)])
    assert charged(stores[0], "hot") == 240
    assert [charged(stores[0], f"{name}59") for name in "az"] == [4, 4]
    for store in stores:
        store.close()


def test_several_keys_take_the_round_trips_of_one() -> None:
    """One on keys that are new, or ours alone; two when someone else has been at one of them."""
    table = new_table()
    with TurnCounter(running().port) as counter:
        ours = open_store(counter.url_of(url_of(table, timeout_ms=PATIENT_MS)))
        theirs = open_store(url_of(table))
        narrow = checking(fixed_window(2, WINDOW_MS, "first"))

        def turns(*steps: Step) -> int:
            before = counter.turns
            ours.apply_all(steps, NOW)
            return counter.turns - before

        for _ in range(2):
            ours.apply_all(_steps("warm", "up"), NOW)
        assert turns(*_steps("a", "b", "c")) == 1
        assert turns(*_steps("a", "b", "c")) == 1
        assert turns(*_steps("a", "b", "c", cost=0)) == 1
        assert turns(*_steps("a", "b"), Step("narrow", narrow, 2)) == 1
        assert turns(*_steps("a", "b"), Step("narrow", narrow)) == 1, "a denial"
        for key in "abc":
            theirs.apply(key, checking(PLENTY), NOW, 1)
        assert turns(*_steps("a", "b", "c", cost=0)) == 1
        theirs.apply("b", checking(PLENTY), NOW, 1)
        assert turns(*_steps("a", "b", "c")) == 2
        theirs.apply("b", checking(PLENTY), NOW, 1)
        assert turns(*_steps("a", "b"), Step("narrow", narrow)) == 1, "a denial, on what was read"
        assert turns(*_steps("a", "b", "c")) == 1
        assert [charged(ours, key) for key in "abc"] == [6, 8, 5]
        ours.close()
        theirs.close()


def test_several_keys_of_which_one_is_raced_are_locked_at_once() -> None:
    """As a check of the raced one would be: one key that all share is enough to make them fail."""
    table = new_table()
    with TurnCounter(running().port) as counter:
        ours = PostgresStore.from_url(counter.url_of(url_of(table, timeout_ms=PATIENT_MS)))
        theirs = open_store(url_of(table))

        def turns() -> int:
            before = counter.turns
            ours.apply_all(_steps("mine", "hot"), NOW)
            return counter.turns - before

        for _ in range(2):
            ours.apply_all(_steps("mine", "hot"), NOW)
        assert ours._sync is not None
        ours._sync._flows.memory.note_race("hot")
        theirs.apply("hot", checking(PLENTY), NOW, 1)
        assert [turns() for _ in range(3)] == [2, 2, 1]
        assert [charged(ours, key) for key in ("mine", "hot")] == [5, 6]
        ours.close()
        theirs.close()


@each_driver
def test_a_table_of_an_older_version_works_and_is_brought_up_by_init(driver: str) -> None:
    """Checks beside it are served, and no row that only held a place is left."""
    table = of_an_older_version()
    url = url_of(table, driver=driver, timeout_ms=PATIENT_MS)

    async def main() -> None:
        store = PostgresStore.from_url(url)
        limiter = rate_limit(gcra(5, WINDOW_MS), store=store)
        both, decision = await asyncio.gather(
            store.aapply_all(_steps("a", "b"), NOW), limiter.acheck("k")
        )
        assert all(both)
        assert decision.remaining == 4
        denial = Step("c", checking(gcra(5, WINDOW_MS)), 6)
        assert not all(await store.aapply_all([*_steps("a", "d"), denial], NOW))
        assert sorted(_rows(table)) == ["a", "b", "k"]
        await store.ainit()
        assert all(await store.aapply_all(_steps("a", "b"), NOW))
        await store.aclose()

    asyncio.run(main())
    assert running().query(f"SELECT to_regproc('{table}_swap_all') IS NOT NULL") == [["t"]]


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(running().port) as proxy:
        yield proxy


def test_a_connection_that_is_cut_leaves_both_keys_charged_or_neither(proxy: FaultProxy) -> None:
    """After the statement: in doubt, and it is said. Before it: certainly not."""
    table = new_table()
    url = f"{proxy.url_of(running())}?table={table}&timeout_ms=2000"
    store, witness = open_store(url), open_store(url_of(table))
    store.apply_all(_steps("a", "b"), NOW)
    proxy.cut_after_request(times=1)
    with pytest.raises(StoreUnavailableError, match="may have been charged"):
        store.apply_all(_steps("b", "a"), NOW)

    def both() -> int:
        """The server may be at it still when the client is cut off, or may not get to it at all."""
        one, other = (charged(witness, key) for key in "ab")
        if one != other:
            raise NotReady(f"charged {one} and {other}")
        return one

    assert eventually(both, within=20, what="the statement that was sent") in (1, 2)
    assert all(store.apply_all(_steps("a", "b"), NOW))
    proxy.refuse()
    with pytest.raises(StoreUnavailableError, match="nothing was charged"):
        store.apply_all(_steps("a", "b"), NOW)
    proxy.restore()
    assert eventually(both, within=20, what="what was charged in all") in (2, 3)
    store.close()
    witness.close()


@each_driver
def test_a_cut_between_reading_and_writing_charges_nothing(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, driver: str
) -> None:
    """In a transaction: what it held is free again, and the places of new keys are not taken."""
    monkeypatch.setattr(_flows, "_GUESSES", 0)
    table = new_table()
    witness = open_store(url_of(table, timeout_ms=PATIENT_MS))

    async def main() -> None:
        url = f"{proxy.url_of(running())}?table={table}&driver={driver}&timeout_ms=2000"
        store = open_store(url)
        await store.aapply_all(_steps("a", "b"), NOW)
        proxy.cut_after_request(match=b"new", times=1)
        with pytest.raises(StoreUnavailableError, match="nothing was charged"):
            await store.aapply_all(_steps("a", "new", "b"), NOW)
        await store.aclose()

    asyncio.run(main())
    assert all(witness.apply_all(_steps("b", "new", "a"), NOW))
    assert [charged(witness, key) for key in ("a", "b", "new")] == [2, 2, 1]
    assert sorted(_rows(table)) == ["a", "b", "new"]
    witness.close()


def test_nothing_is_lost_or_invented_when_the_server_is_killed() -> None:
    """kill -9 in the middle of a load on two keys, in opposite orders."""
    require("postgres")
    with Postgres() as server:
        PostgresStore.from_url(server.url).init()
        url = f"{server.url}?timeout_ms=1000"
        with Spender(url, "a+b") as one, Spender(url, "b+a") as other:
            for _ in range(2):
                one.read(150)
                other.read(150)
                server.kill()
                server.restart()
            one.read(50)
            other.read(50)
            one.kill()
            other.kill()
        store = open_store(server.url)
        both = {charged(store, key) for key in "ab"}
        store.close()
    told, doubtful = (one.admitted + other.admitted), (one.doubtful + other.doubtful)
    assert len(both) == 1
    # Beside the doubts: what the two had committed, and could not tell any more, when they died.
    assert told <= both.pop() <= told + doubtful + 2
