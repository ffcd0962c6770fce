"""Compare-and-swap without a network: what is repeated, what is recognized, what is given up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Outcome,
    StoreUnavailableError,
    fixed_window,
    gcra,
    sliding_window_log,
)
from penstock.core._flow import drive
from penstock.core._transform import Transform, checking, peeking
from penstock.stores._sheet import Call
from penstock.stores.cas import RACES, TRAIL, Conflict, Drop, Held, Read, Request, Swap
from penstock.stores.cas._compare_and_swap import settle
from penstock.stores.cas._memory import RaceMemory
from penstock.stores.cas._requests import RetryPause
from tests.stores.cas.backend import LATE, LOST, REFUSED, DictCasStore, Records, lossy, once

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
CHECK = checking(fixed_window(10, HOUR_MS))
PEEK = peeking(fixed_window(10, HOUR_MS))


def _check(store: DictCasStore, key: str = "k") -> Decision:
    return store.apply(key, CHECK, NOW, 1)


def _spent(records: Records, key: str = "k") -> int:
    return 10 - DictCasStore(records).apply(key, PEEK, NOW, 1).remaining


def test_a_check_is_a_read_and_a_write_and_then_a_write() -> None:
    """Two requests for a key not seen before, one for a key remembered, one when denied or only
    looking, one to forget."""
    store = DictCasStore()
    log = store.records.log
    _check(store)
    assert log == ["Read", "Swap"]
    _check(store)
    assert log[2:] == ["Swap"]
    store.apply("k", CHECK, NOW, 99)
    store.apply("k", PEEK, NOW, 1)
    assert log[3:] == ["Read", "Read"]
    store.reset("k")
    assert log[5:] == ["Drop"]
    assert store.records.held == {}
    _check(store)
    assert log[6:] == ["Read", "Swap"]


def test_what_is_remembered_is_never_taken_for_true() -> None:
    """Another process spends, resets, spends all: every answer is that of the backend."""
    records = Records()
    ours, theirs = DictCasStore(records), DictCasStore(records)
    assert _check(ours).remaining == 9
    assert _check(theirs).remaining == 8
    assert _check(ours).remaining == 7
    theirs.reset("k")
    assert _check(ours).remaining == 9
    theirs.apply("k", CHECK, NOW, 9)
    assert not _check(ours)
    theirs.reset("k")
    assert _check(ours).remaining == 9
    assert ours.apply("k", PEEK, NOW, 1).remaining == 9


def test_a_memory_that_misled_is_not_asked_the_next_time() -> None:
    """A key that two processes use costs a read and a write, not a write in vain each time."""
    records = Records()
    ours, theirs = DictCasStore(records), DictCasStore(records)
    _check(ours)
    _check(theirs)
    records.log.clear()
    _check(ours)
    assert records.log == ["Swap", "Read", "Swap"]
    records.log.clear()
    _check(ours)
    assert records.log == ["Read", "Swap"]


def test_the_memory_is_bounded() -> None:
    """By keys, the least recently used going first, and by the size of a record."""
    memory = RaceMemory(3)
    for key in "abc":
        memory.keep(key, Held("r", key))
    memory.recall("a")
    memory.keep("d", Held("r", "d"))
    assert [key for key in "abcd" if memory.recall(key)] == ["a", "c", "d"]
    memory.keep("a", Held("r" * 5_000, "a"))
    assert memory.recall("a") is None
    nothing = RaceMemory(0)
    nothing.keep("a", Held("r", "a"))
    assert nothing.recall("a") is None


def test_a_raced_key_is_read_first_until_it_is_quiet() -> None:
    """Who has won would else write again from memory, before the others have read."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)

    def interfere(request: Request) -> None:
        if isinstance(request, Swap):
            store.before = lambda _request: None
            _check(other)

    store.before = interfere
    _check(store)
    records.log.clear()
    for _ in range(4):
        _check(store)
    assert records.log == ["Read", "Swap"] * 3 + ["Swap"]
    store.before = interfere
    _check(store)
    records.log.clear()
    store.apply("k", PEEK, NOW, 1)
    _check(store)
    assert records.log == ["Read", "Read", "Swap"], "refused in quick succession: raced again"


def test_a_memory_that_misleads_is_a_race_only_while_it_is_young() -> None:
    """Somebody else may use a key now and then, and nobody has to wait for that."""
    now_s = 100.0
    memory = RaceMemory(now_s=lambda: now_s)
    memory.keep("k", Held("r", "1"))
    now_s += 1
    memory.note_loss("k", was_remembered=True)
    assert not memory.is_to_be_looked_at("k")
    memory.keep("k", Held("r", "2"))
    memory.note_loss("k", was_remembered=True)
    assert memory.is_to_be_looked_at("k")


def test_who_writes_again_and_again_looks_for_others_once_in_a_while() -> None:
    """It is never refused, so it has no other way to hear of them."""
    now_s = 100.0
    memory = RaceMemory(now_s=lambda: now_s)

    def writes(pause_s: float) -> int:
        nonlocal now_s
        count = 0
        while not memory.is_to_be_looked_at("k") and count < 100:
            memory.keep("k", Held("r", str(count)), written=True)
            count += 1
            now_s += pause_s
        return count

    assert writes(pause_s=1.0) == 100
    assert writes(pause_s=0.001) == 33, "the first of them came after a pause"
    memory.note_look("k", memory.recall("k"))
    assert not memory.is_raced("k")
    assert writes(pause_s=0.001) == 32
    memory.note_look("k", Held("r", "another"))
    assert memory.is_raced("k")


def _pauses_of_a_loser(known: bool) -> list[str | float]:
    """The steps of a check that loses all its races: names of requests, lengths of pauses."""
    steps: list[str | float] = []
    call = Call([("k", CHECK, 1, False)], NOW, 0.0)
    flow = settle(("k",), [call], 10_000, RaceMemory())
    held = Held(_record(), "other")

    def lose(step: Any) -> Any:
        steps.append(step.ms if isinstance(step, RetryPause) else type(step).__name__)
        return Conflict(held, known=known) if isinstance(step, Swap) else held

    drive(flow, lose)
    with pytest.raises(StoreUnavailableError, match=f"{RACES} attempts"):
        call.answer()
    return steps


def test_a_busy_server_is_given_more_time_than_a_race() -> None:
    """Pauses grow on; and its key is not taken for a raced one."""
    memory = RaceMemory()
    call = Call([("k", CHECK, 1, False)], NOW, 0.0)
    flow = settle(("k",), [call], 10_000, memory)
    pauses: list[float] = []

    def fail(step: Any) -> Any:
        if isinstance(step, Swap):
            raise REFUSED
        if isinstance(step, RetryPause):
            pauses.append(step.ms)

    drive(flow, fail)
    with pytest.raises(StoreUnavailableError, match="was not charged"):
        call.answer()
    assert 50 < max(pauses) <= 200
    assert not memory.is_raced("k")


def _record() -> str:
    store = DictCasStore()
    _check(store)
    return store.records.held["k"].record


@pytest.mark.parametrize("known", [True, False])
def test_pauses_are_short_and_what_was_found_before_one_is_read_again(known: bool) -> None:
    """A write that rests on what was there before a pause is as good as lost."""
    steps = _pauses_of_a_loser(known)
    pauses = [step for step in steps if isinstance(step, float)]
    assert len(pauses) == RACES - 1
    assert 8 < max(pauses) <= 16
    for place, step in enumerate(steps[:-1]):
        if isinstance(step, float):
            assert steps[place + 1] == "Read"
    assert steps.count("Read") == RACES + (0 if known else 1)


@pytest.mark.parametrize("others", range(TRAIL))
def test_a_lost_reply_to_a_write_that_happened_is_found_out(others: int) -> None:
    """The write is known again by its id, even below the writes of others."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)

    def lose(request: Request) -> None:
        if isinstance(request, Swap):
            store.after = lambda _request: None
            for _ in range(others):
                _check(other)
            raise LOST

    store.after = lose
    assert _check(store) == Decision(True, 10, 9, CHECK_RESET, 0)
    assert _spent(records) == 1 + others


CHECK_RESET = NOW - NOW % HOUR_MS + HOUR_MS


@pytest.mark.parametrize("others", range(TRAIL))
def test_a_lost_request_is_written_once(others: int) -> None:
    """It is seen not to have happened, by the trail that leads back past it."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)

    def lose(request: Request) -> None:
        if isinstance(request, Swap):
            store.before = lambda _request: None
            for _ in range(others):
                _check(other)
            raise LOST

    store.before = lose
    assert _check(store).remaining == 9 - others
    assert _spent(records) == 1 + others


def test_a_write_under_too_many_others_ends_in_doubt() -> None:
    """When nobody can know, the error says so, and nothing is repeated."""
    records = Records()
    _check(DictCasStore(records))
    store, other = DictCasStore(records), DictCasStore(records)
    strategy = checking(fixed_window(100, HOUR_MS))

    def lose(request: Request) -> None:
        if isinstance(request, Swap):
            for _ in range(TRAIL):
                other.apply("k", strategy, NOW, 1)
            raise LOST

    store.after = lose
    with pytest.raises(StoreUnavailableError, match="may have been charged"):
        store.apply("k", strategy, NOW, 1)
    assert records.log.count("Swap") == 1 + 1 + TRAIL


def test_a_write_that_arrives_late_is_recognized() -> None:
    """Still under way when it was looked for, it wins over its own repetition."""
    records = Records()
    store = DictCasStore(records)
    under_way: list[Request] = []

    def hold_back(request: Request) -> None:
        if isinstance(request, Swap):
            if not under_way:
                under_way.append(request)
                raise LOST
            # The second attempt leaves; the first overtakes it.
            store.before = lambda _request: None
            assert records.perform(under_way[0]) == ""

    store.before = hold_back
    assert _check(store).remaining == 9
    assert _spent(records) == 1


def test_a_driver_that_repeats_by_itself_does_no_harm() -> None:
    """The second of two equal writes is refused, and the first is known again."""
    records = Records()
    store = DictCasStore(records)
    store.before = lambda request: isinstance(request, Swap) and records.perform(request)  # type: ignore[assignment, return-value]
    for remaining in (9, 8, 7):
        assert _check(store).remaining == remaining
    assert _spent(records) == 3


def test_a_refused_connection_is_tried_again_and_not_in_doubt() -> None:
    """A moment without a server costs nothing; a longer one ends in a typed error."""
    store = DictCasStore()
    store.before = once(Read, REFUSED, times=2)
    assert _check(store).remaining == 9
    store.before = once(Request, REFUSED, times=99)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=r"connection refused.*was not charged"):
            _check(store)
    store.before = once(Swap, REFUSED)
    assert _check(store).remaining == 8


def test_a_deadline_in_a_write_ends_in_doubt() -> None:
    """No time to look: the error says that the request may have been charged."""
    store = DictCasStore()
    store.after = once(Swap, LATE)
    with pytest.raises(StoreUnavailableError, match="may have been charged"):
        _check(store)
    store.after = once(Read, LATE)
    with pytest.raises(StoreUnavailableError, match="was not charged"):
        _check(store, "new")


def test_races_are_run_a_bounded_number_of_times() -> None:
    """A key that is changed every time ends as unavailable, not charged."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)
    endless = checking(fixed_window(10_000, HOUR_MS))

    def interfere(request: Request) -> None:
        if isinstance(request, Swap):
            other.apply("k", endless, NOW, 1)

    store.before = interfere
    with pytest.raises(StoreUnavailableError, match=rf"{RACES} attempts.*was not charged"):
        store.apply("k", endless, NOW, 1)
    store.before = lambda _request: None
    assert store.apply("k", endless, NOW, 1).remaining == 10_000 - RACES - 1


def _taking() -> Transform[Any]:
    """Deletes the key; the result is what was there."""
    strategy = CHECK.strategy
    return Transform(strategy, "take", lambda s, _n, _c: Outcome(None, s, 0, True), lambda *_: None)


def test_a_lost_reply_to_a_delete_is_found_out() -> None:
    """The key is gone, and what it held is answered, not what is there afterwards."""
    store = DictCasStore()
    _check(store)
    state = store.apply("k", Transform(CHECK.strategy, "look", _look, lambda *_: None), NOW, 1)
    store.after = once(Drop, LOST)
    assert store.apply("k", _taking(), NOW, 1) == state
    assert store.records.held == {}
    _check(store)
    store.before = once(Drop, LOST)
    assert store.apply("k", _taking(), NOW, 1) == state
    assert store.records.held == {}


def _look(state: Any, _now: int, _cost: int) -> Outcome[Any]:
    return Outcome(None, state, 0, False)


def test_a_key_begun_anew_is_not_mistaken_for_the_old_one() -> None:
    """Deleted and written again between read and write: the write is refused."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)
    _check(store)

    def renew(request: Request) -> None:
        if isinstance(request, Swap):
            store.before = lambda _request: None
            other.reset("k")
            _check(other)

    store.before = renew
    assert _check(store).remaining == 8
    assert _spent(records) == 2


def test_a_failing_transform_fails_its_caller_alone() -> None:
    """Others of the same batch are answered."""
    records = Records()
    DictCasStore(records).apply("k", checking(gcra(5, 1000)), NOW, 1)
    with pytest.raises(ConfigInvalidError, match="'gcra'"):
        _check(DictCasStore(records))
    DictCasStore(records).reset("k")
    assert _check(DictCasStore(records)).remaining == 9


def test_a_state_that_is_too_large_is_refused() -> None:
    """The text says how large it is and what would fit; nothing is written."""

    class Small(DictCasStore):
        max_record_bytes = 50

    store = Small()
    log = checking(sliding_window_log(1_000, HOUR_MS))
    with pytest.raises(ConfigInvalidError, match=r"takes \d+ bytes.*holds 50"):
        store.apply("k", log, NOW, 900)
    assert store.records.held == {}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_lost_the_count_is_kept(seed: int) -> None:
    """Two processes on connections that lose a third of everything: what was answered is what was
    counted, and only those in doubt may be counted too."""
    rng = random.Random(seed)
    records = Records()
    stores = [DictCasStore(records), DictCasStore(records)]
    for store in stores:
        store.before, store.after = lossy(rng), lossy(rng)
    admitted = doubtful = 0
    strategy = checking(fixed_window(1_000, HOUR_MS))
    for _ in range(40):
        try:
            admitted += rng.choice(stores).apply("k", strategy, NOW, 1).allowed
        except StoreUnavailableError as error:  # noqa: PERF203
            doubtful += "may have been charged" in str(error)
    left = DictCasStore(records).apply("k", peeking(fixed_window(1_000, HOUR_MS)), NOW, 1)
    assert admitted <= 1_000 - left.remaining <= admitted + doubtful
    assert admitted >= 20
