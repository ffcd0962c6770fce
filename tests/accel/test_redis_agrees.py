"""The compiled first exchange of a call on Redis, beside what it stands for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Decision, StoreUnavailableError, gcra, slots
from penstock.core import native
from penstock.core._steps import Step
from penstock.core._transform import (
    booking,
    checking,
    refunding,
    releasing,
    taking,
    telling,
)
from penstock.stores._sheet import ConnectionFailedError
from penstock.stores.redis._flows import decision_of
from penstock.stores.redis._multiplexed import pair_replies
from penstock.stores.redis._plans import plan_of
from penstock.stores.redis._requests import Address, Exchange, Refusal
from penstock.stores.redis._sync_connections import new_reader, pack

pytestmark = pytest.mark.skipif(native is None, reason="nothing is compiled")

WORDS = st.lists(st.binary(max_size=20), max_size=5).map(tuple)
NUMBERS = st.integers(0, 2**63 - 1) | st.integers(0, 10)
HERE = Address("here", 1)


@settings(max_examples=60)
@given(
    sha1=st.binary(min_size=1, max_size=40),
    before=WORDS,
    after=WORDS,
    key=st.text(st.characters(codec="utf-8"), min_size=1, max_size=300),
    now=NUMBERS,
    cost=NUMBERS,
    argument=st.none() | st.text(st.characters(codec="utf-8"), max_size=300),
)
def test_it_packs_what_hiredis_packs(
    sha1: bytes,
    before: tuple[bytes, ...],
    after: tuple[bytes, ...],
    key: str,
    now: int,
    cost: int,
    argument: str | None,
) -> None:
    words = (b"EVALSHA", sha1, b"1", key.encode(), b"%d" % now, *before, b"%d" % cost, *after)
    if argument is not None:
        words = (*words, argument.encode())
    command = native.ScriptCommand(sha1, before, after, argument is not None)
    assert command.pack(key, now, cost, argument) == pack((words,))


def test_an_argument_is_packed_exactly_where_the_script_takes_one() -> None:
    with pytest.raises(TypeError, match="takes one"):
        native.ScriptCommand(b"sha", (), ()).pack("k", 0, 1, "more")
    with pytest.raises(TypeError, match="takes one"):
        native.ScriptCommand(b"sha", (), (), True).pack("k", 0, 1)
    with pytest.raises(UnicodeEncodeError):
        native.ScriptCommand(b"sha", (), (), True).pack("k", 0, 1, "\ud800")


class Told:
    """Who is told replies, by either path; remembers them."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def done(self) -> bool:
        return False

    def set_result(self, heard: Any) -> None:
        self.heard.append(heard)


class By:
    """What a compiled exchange reports to."""

    def __init__(self) -> None:
        self.denied_ones: list[Decision] = []
        self.went_on: list[Any] = []
        self.failures: list[Exception] = []

    def denied(self, _steps: Any, decisions: Sequence[Decision]) -> None:
        self.denied_ones += [decision for decision in decisions if not decision]

    def go_on(self, _first: Any, heard: Any, _told: Any) -> None:
        self.went_on.append(heard)

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


GCRA, SLOTS = gcra(5, 1_000), slots(3)
CHECK = checking(GCRA)
STEPS = {
    "check": [Step("k", CHECK, 1)],
    "three checks": [Step(key, CHECK, 1, key == "b") for key in "abc"],
    "slot": [Step("s", taking(SLOTS, "id"))],
    "slot and instant": [Step("s", taking(SLOTS, "id")), Step("s", telling(SLOTS))],
    "release": [Step("s", releasing(SLOTS, "id"))],
    "refund and instant": [Step("k", refunding(GCRA, 7), 3), Step("k", telling(GCRA))],
    "check and instant": [Step("k", CHECK), Step("k", telling(GCRA))],
    "booking": [Step("k", booking(GCRA, 500))],
}


def first_exchange(told: Any, by: By, kind: str = "check", *, calls: bool = False) -> Any:
    steps = STEPS[kind]
    plan = None if kind == "check" else plan_of(steps)
    return native.FirstExchange(HERE, steps, plan, 0, 1.0, told, calls, by)


def answer_to(kind: str, reply: Any) -> Any:
    """By what the flow goes by; the reply itself, where that is no answer."""
    steps, count = STEPS[kind], {"check": 5, "three checks": 16}.get(kind, 6)
    if not isinstance(reply, list) or [type(number) for number in reply] != [int] * count:
        return reply
    try:
        return decision_of(reply) if kind == "check" else plan_of(steps).answers(steps, reply, {})
    except StoreUnavailableError:
        return reply


COUNTS = st.sampled_from([5, 16, 6]) | st.integers(0, 40)
NUMBERS_OF_REPLIES = COUNTS.flatmap(
    lambda count: st.lists(
        st.integers(0, 10**17) | st.integers(0, 2) | st.integers(-5, 2**63 - 1),
        min_size=count,
        max_size=count,
    )
)
FIELDS = st.integers(0, 2**53 - 1)
DECISIONS = st.tuples(st.just(1), FIELDS, FIELDS, FIELDS, st.just(0)) | st.tuples(
    st.just(0), FIELDS, FIELDS, FIELDS, st.integers(1, 2**53 - 1)
)
SOUND = DECISIONS.map(list) | st.sampled_from([1, 3]).flatmap(
    lambda count: st.lists(DECISIONS, min_size=count, max_size=count).map(
        lambda each: [7, *(number for decision in each for number in decision)]
    )
)
REPLIES = (
    (SOUND | NUMBERS_OF_REPLIES).map(
        lambda numbers: b"*%d\r\n" % len(numbers) + b"".join(b":%d\r\n" % each for each in numbers)
    )
    | st.just(b"-NOSCRIPT No matching script.\r\n")
    | st.sampled_from(
        [
            b"+OK\r\n",
            b"*-1\r\n",
            b"*2\r\n$1\r\na\r\n:1\r\n",
            b"*5\r\n" + b"+a\r\n" * 5,
            b"*200\r\n" + b":1\r\n" * 200,
        ]
    )
)


@settings(max_examples=150)
@given(
    replies=st.lists(st.tuples(REPLIES, st.sampled_from(["", *STEPS])), min_size=1, max_size=12),
    data=st.data(),
)
def test_it_pairs_replies_as_the_interpreted_one_does(
    replies: list[tuple[bytes, str]], data: st.DataObject
) -> None:
    """Checks and other requests in one queue, and bytes that arrive in any pieces."""
    stream = b"".join(reply for reply, _ in replies)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream)), max_size=8)))
    pieces = [
        stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    by = By()
    asked, compiled, interpreted = deque[Any](), [], []
    plain = deque[Any]()
    for _, kind in replies:
        one, other = Told(), Told()
        compiled.append(one)
        interpreted.append(other)
        asked.append(first_exchange(one, by, kind) if kind else exchange_for(one))
        plain.append(exchange_for(other))
    for queue, pair in ((asked, native.pair_replies), (plain, pair_replies)):
        reader = new_reader()
        for piece in pieces:
            pair(queue, reader, piece)
        assert not queue
    answers = []
    for (_, kind), one, other in zip(replies, compiled, interpreted, strict=True):
        (heard,), ((reply,),) = one.heard, other.heard
        expected = answer_to(kind, reply) if kind else [reply]
        # An error is only ever itself.
        assert repr(heard) == repr(expected)
        if kind in ("check", "three checks") and expected is not reply:
            answers += [expected] if kind == "check" else expected
    assert not by.failures
    assert by.denied_ones == [decision for decision in answers if not decision]


def exchange_for(told: Told) -> Exchange:
    exchange = Exchange(HERE, ((b"PING",),))
    exchange.wait(told, 1.0)
    return exchange


def test_what_is_no_decision_goes_on_where_a_function_is_told() -> None:
    by, told = By(), []
    queue = deque(
        first_exchange(lambda *heard: told.append(heard), by, calls=True) for _ in range(3)
    )
    native.pair_replies(queue, new_reader(), b"*5\r\n:1\r\n:5\r\n:4\r\n:7\r\n:0\r\n-BUSY wait\r\n")
    assert told == [(Decision(True, 5, 4, 7, 0), None)]
    assert [(type(heard), heard.code) for heard in by.went_on] == [(Refusal, "BUSY")]
    (last,) = queue
    lost = ConnectionFailedError("lost", may_have_run=True)
    last.answer.set_exception(lost)
    assert last.answer.done()
    assert by.went_on[1:] == [lost]


def test_one_who_cannot_be_told_does_not_keep_the_others_from_it() -> None:
    by, told = By(), []

    def failing(_decision: Any, _error: Any) -> None:
        raise ValueError("not now")

    queue = deque(
        first_exchange(answer, by, calls=True)
        for answer in (failing, lambda *heard: told.append(heard))
    )
    native.pair_replies(queue, new_reader(), b"*5\r\n:1\r\n:5\r\n:4\r\n:7\r\n:0\r\n" * 2)
    assert [str(failure) for failure in by.failures] == ["not now"]
    assert len(told) == 1


def test_more_replies_than_requests_are_an_error() -> None:
    reply = b"*5\r\n:1\r\n:5\r\n:4\r\n:7\r\n:0\r\n"
    queue = deque([first_exchange(Told(), By())])
    with pytest.raises(IndexError):
        native.pair_replies(queue, new_reader(), reply * 2)


def test_who_has_given_up_keeps_its_place() -> None:
    """The reply to a check that nobody waits for is not the next one's."""
    reply = b"*5\r\n:1\r\n:5\r\n:%d\r\n:7\r\n:0\r\n"
    told = Told()
    gone = first_exchange(Told(), By())
    gone.forget()
    queue = deque([gone, first_exchange(told, By())])
    native.pair_replies(queue, new_reader(), reply % 4 + reply % 3)
    assert [decision.remaining for decision in told.heard] == [3]
