"""The line in which callers share a connection: nobody is lost in it, and nor is the turn."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from penstock import Decision, gcra
from penstock.core.store import checking
from penstock.stores.line import LateError, Line, settle
from penstock.stores.sheet import Call, Sheet
from tests.helpers import frantic_switching

NOW = 1_700_000_000_000
CHECK = checking(gcra(5, 60_000))


def _call(timeout_s: float = 5.0, key: str = "k", check: Any = CHECK) -> Call:
    return Call((key,), check, NOW, 1, time.monotonic() + timeout_s)


def _answering(most: int = 256, pause: Any = None) -> Any:
    """A leader that notes the size of its batches."""
    sizes: list[int] = []

    def lead(line: Line, _deadline: float) -> None:
        calls = line.take(most)
        sizes.append(len(calls))
        if pause is not None:
            pause()
        for call in calls:
            call.results = ["served"]
        settle(calls)

    return lead, sizes


def test_a_lone_caller_leads_for_itself() -> None:
    """One batch of one."""
    lead, sizes = _answering()
    line = Line(lead)
    for _ in range(3):
        call = _call()
        line.wait(call)
        assert call.answer() == ["served"]
    assert sizes == [1, 1, 1]


def test_callers_that_wait_share_a_batch() -> None:
    """While the first is served, twenty queue up, and the next batch is all of them."""
    entered, go = threading.Event(), threading.Event()

    def pause() -> None:
        entered.set()
        go.wait(5)

    lead, sizes = _answering(pause=pause)
    line = Line(lead)
    threads = [threading.Thread(target=line.wait, args=(_call(),)) for _ in range(21)]
    threads[0].start()
    entered.wait(5)
    for thread in threads[1:]:
        thread.start()
    while len(line) < 20:
        time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join(5)
    assert sizes == [1, 20]


def test_a_batch_has_a_limit_and_nobody_is_forgotten_behind_it() -> None:
    """Those who do not fit are in the next one."""
    lead, sizes = _answering(most=3, pause=lambda: time.sleep(0.002))
    line = Line(lead)
    threads = [threading.Thread(target=line.wait, args=(_call(),)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert sum(sizes) == 20
    assert max(sizes) <= 3


def test_a_leader_that_fails_first_takes_nobody_with_it() -> None:
    """Its own caller gets the error; the next in line leads."""
    fails = [True]

    def lead(line: Line, _deadline: float) -> None:
        if fails.pop() if fails else False:
            time.sleep(0.05)
            raise RuntimeError("no lock")
        settle(line.take(9))

    line = Line(lead)
    errors: list[Exception] = []

    def first() -> None:
        try:
            line.wait(_call())
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    time.sleep(0.01)
    second = _call()
    line.wait(second)
    thread.join(5)
    assert second.done
    assert len(errors) == 1


def test_the_turn_survives_a_storm_of_deadlines() -> None:
    """Callers that give up at any moment, served or not, never take the turn with them."""
    rng = random.Random(7)
    lead, _ = _answering(most=4, pause=lambda: time.sleep(rng.random() * 0.001))
    line = Line(lead)
    answers: list[str] = []

    def caller(seed: int) -> None:
        luck = random.Random(seed)
        for _ in range(40):
            timeout_s = luck.choice((0.0, 0.0005, 0.001, 0.002, 1.0))
            try:
                if luck.random() < 0.1:
                    with line.alone(time.monotonic() + timeout_s):
                        time.sleep(0.0002)
                else:
                    line.wait(_call(timeout_s))
                answers.append("served")
            except LateError:
                answers.append("late")

    with frantic_switching():
        threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(answers) == 16 * 40
    assert set(answers) == {"served", "late"}
    last = _call()
    line.wait(last)
    assert last.done
    assert len(line) == 0


def test_a_sheet_reads_a_hot_key_once_and_writes_it_once() -> None:
    """Seven callers of one key: five admitted, two denied, one record."""
    reads: list[str] = []
    sheet = Sheet(lambda key: reads.append(key))
    calls = [_call() for _ in range(7)]
    for call in calls:
        sheet.run(call)
    decisions: list[Decision] = [call.answer()[0] for call in calls]
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 2
    assert reads == ["k"]
    assert list(sheet.writes) == ["k"]


def test_a_call_that_raises_writes_nothing() -> None:
    """Not even what it had decided before; the calls beside it are served."""
    other = checking(type("Other", (type(gcra(5, 1)),), {"name": "other"})(5, 60_000))
    sheet = Sheet(lambda _key: None)
    good, bad = _call(key="b", check=other), Call(("a", "b"), CHECK, NOW, 1, 0.0)
    sheet.run(good)
    sheet.run(bad)
    assert list(sheet.writes) == ["b"]
    assert good.answer()[0].remaining == 4
    with pytest.raises(ValueError, match="holds the state of something else"):
        bad.answer()
