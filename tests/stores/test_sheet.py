"""Calls that share a transaction: what they read, write and answer for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock import Decision, gcra
from penstock.core._steps import Step
from penstock.core._transform import checking
from penstock.stores._sheet import Call, Sheet
from tests.support.helpers import Quota

NOW = 1_700_000_000_000
CHECK = checking(gcra(5, 60_000))


def _call(key: str = "k", check: Any = CHECK) -> Call:
    return Call([(key, check, 1, False)], NOW, time.monotonic() + 5)


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
    good = _call(key="b", check=other)
    bad = Call([("a", CHECK, 1, False), ("b", CHECK, 1, False)], NOW, 0.0)
    sheet.run(good)
    sheet.run(bad)
    assert list(sheet.writes) == ["b"]
    assert good.answer()[0].remaining == 4
    with pytest.raises(ValueError, match="holds the state of something else"):
        bad.answer()


def _whole(*steps: Step) -> Call:
    return Call(steps, NOW, 0.0, is_whole=True)


def test_a_call_as_a_whole_writes_all_of_its_keys_or_none() -> None:
    """On top of what the calls before it have left, and seen by those behind it."""
    sheet = Sheet(lambda _key: None)
    plenty, once = Step("plenty", CHECK), Step("once", checking(gcra(1, 60_000)))
    first, second = _whole(plenty, once), _whole(plenty, once)
    third = _whole(plenty, once._replace(shadow=True))
    for call in (first, second, third):
        sheet.run(call)
    assert [[bool(d) for d in call.answer()] for call in (first, second, third)] == [
        [True, True],
        [True, False],
        [True, False],
    ]
    assert [sorted(call.writing) for call in (first, second, third)] == [
        ["once", "plenty"],
        [],
        ["plenty"],
    ]
    assert third.answer()[0].remaining == 3


def test_a_call_as_a_whole_sees_what_its_own_steps_have_left() -> None:
    """A key that is named twice is decided twice, and written once or not at all."""
    sheet = Sheet(lambda _key: None)
    twice = [Step("k", CHECK, 2), Step("k", CHECK, 2)]
    calls = [_whole(*twice), _whole(*twice)]
    for call in calls:
        sheet.run(call)
    assert [[d.remaining for d in call.answer()] for call in calls] == [[3, 1], [1, 1]]
    assert calls[1].writing == {}


class Faulty(Quota):
    """Raises as often as it is told."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def check(self, state: Any, now: int, cost: int) -> Any:
        if self.times:
            self.times -= 1
            raise TimeoutError("too long")
        return super().check(state, now, cost)


def test_what_a_strategy_raises_is_its_callers() -> None:
    """It would raise it again: strategies are pure."""
    sheet, call = Sheet(lambda _key: None), _call(check=checking(Faulty(99)))
    sheet.run(call)
    with pytest.raises(TimeoutError):
        call.answer()


def test_what_does_not_happen_again_was_an_interrupt_of_the_leader() -> None:
    """Whoever serves the calls of others must not leave its own timeout to one of them."""
    sheet, call = Sheet(lambda _key: None), _call(check=checking(Faulty(1)))
    with pytest.raises(TimeoutError):
        sheet.run(call)
    assert call.error is None
    assert not sheet.writes
