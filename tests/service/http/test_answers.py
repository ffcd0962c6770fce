"""Replies as bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Decision, ManualClock, MemoryStore, Strategy, fixed_window, gcra
from penstock.service.http._answers import NESTED, PLAIN, Answers, decision_json
from penstock.service.http._calls import Calls
from tests.service.worlds import FragileStore, service_on

NOW = 1_700_000_000_000


@pytest.mark.parametrize("strategy", [None, fixed_window(10, 60_000), gcra(60, 60_000, 10)])
@pytest.mark.parametrize("remaining", [0, 9, 2**53 - 1])
@pytest.mark.parametrize("reset_at", [NOW - 1, NOW, NOW + 1, NOW + 1_000, NOW + 9_001])
@pytest.mark.parametrize("retry_after_ms", [0, 1, 4_001])
def test_the_short_way_and_the_long_way_make_the_same_reply(
    strategy: Strategy | None, remaining: int, reset_at: int, retry_after_ms: int
) -> None:
    """A decision without the older headers is rendered in one piece; to the byte the same."""
    answers = Answers(ManualClock(NOW))
    label = answers.label('a "b"', 10, 60_000, strategy)
    decision = Decision(retry_after_ms == 0, 10, remaining, reset_at, retry_after_ms)
    status, body = (429 if retry_after_ms else 200), decision_json(decision)
    long = answers.with_limits(status, label, decision, body, False)
    assert answers.decided(decision, label, PLAIN, False) == long
    assert answers.statuses == {status: 2}
    for peeked in (False, True):
        nested = f'{{"decision":{body}}}'
        long = answers.with_limits(200, label, decision, nested, False, peeked)
        assert answers.decided(decision, label, NESTED, False, peeked) == long


def test_the_date_is_the_clocks() -> None:
    """One place reads the system's time, and it is not this one."""
    assert Answers(ManualClock(NOW)).stamp == "Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"


class NearStore(FragileStore):
    """Not a MemoryStore by type, but as quick."""

    answers_at_once = True

    def apply(self, *arguments: Any) -> Any:
        return self.inner.apply(*arguments)


@pytest.mark.parametrize(
    "body", [b'{"policy":"api","key":"k"}', b'{"key":"k","limit":3,"window_ms":60000}']
)
def test_a_store_that_answers_at_once_is_answered_for_at_once(body: bytes) -> None:
    """By what it says of itself, whatever its type is; any other has to be awaited."""
    for store, at_once in ((NearStore(), True), (FragileStore(), False), (MemoryStore(), True)):
        service, clock = service_on(store)
        answer = Calls(service, Answers(clock)).check(False, body)
        assert isinstance(answer, bytes) is at_once
        reply = answer if isinstance(answer, bytes) else asyncio.run(answer())
        assert b'"remaining":2' in reply
