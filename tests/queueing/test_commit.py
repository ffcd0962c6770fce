"""Group commit: nobody is lost in it, and nor is the lead."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock._queueing import Batch, CallQueue, GroupCommit, LateError, QueuedCall, ThreadWaiter
from tests.support.helpers import frantic_switching


class Asked(QueuedCall):
    """A call whose answer is a word."""

    __slots__ = ("answer",)

    def __init__(self, timeout_s: float = 5.0) -> None:
        super().__init__(time.monotonic() + timeout_s)
        self.answer: str | None = None

    def is_answered(self) -> bool:
        return self.answer is not None or self.error is not None


class Server:
    """Answers batches of at most `most`, and notes their sizes."""

    def __init__(self, most: int = 256, pause: Callable[[], Any] = lambda: None) -> None:
        self._most = most
        self._pause = pause
        self.sizes: list[int] = []
        self.mended = 0
        self.commit: GroupCommit[Asked] = GroupCommit(self._serve, self._mend, _in_doubt)

    def _serve(self, batch: Batch[Asked], _deadline: float) -> None:
        calls = batch.take(self._most)
        self.sizes.append(len(calls))
        self._pause()
        for call in calls:
            call.answer = "served"

    def _mend(self, _batch: Batch[Asked]) -> None:
        self.mended += 1


def _in_doubt(_call: Asked) -> Exception:
    return RuntimeError("in doubt")


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_lone_caller_leads_for_itself() -> None:
    """One batch of one."""
    server = Server()
    for _ in range(3):
        call = Asked()
        server.commit.run(call)
        assert call.answer == "served"
    assert server.sizes == [1, 1, 1]


def test_callers_that_wait_share_a_batch() -> None:
    """While the first is served, twenty come, and the next batch is all of them."""
    entered, go = threading.Event(), threading.Event()

    def pause() -> None:
        entered.set()
        go.wait(5)

    server = Server(pause=pause)
    threads = [threading.Thread(target=server.commit.run, args=(Asked(),)) for _ in range(21)]
    threads[0].start()
    entered.wait(5)
    for thread in threads[1:]:
        thread.start()
    until(lambda: server.commit.pending == 20)
    go.set()
    for thread in threads:
        thread.join(5)
    assert server.sizes == [1, 20]


def test_a_batch_has_a_limit_and_nobody_is_forgotten_behind_it() -> None:
    """Those who do not fit are in the next one."""
    server = Server(most=3, pause=lambda: time.sleep(0.002))
    threads = [threading.Thread(target=server.commit.run, args=(Asked(),)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert sum(server.sizes) == 20
    assert max(server.sizes) <= 3


def test_a_leader_that_fails_first_takes_nobody_with_it() -> None:
    """Its own caller gets the error; the next leads."""
    fails = [True]

    def serve(batch: Batch[Asked], _deadline: float) -> None:
        if fails.pop() if fails else False:
            time.sleep(0.05)
            raise OSError("no lock")
        for call in batch.take(9):
            call.answer = "served"

    commit: GroupCommit[Asked] = GroupCommit(serve, lambda _batch: None, _in_doubt)
    errors: list[Exception] = []

    def first() -> None:
        try:
            commit.run(Asked())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    time.sleep(0.01)
    second = Asked()
    commit.run(second)
    thread.join(5)
    assert second.answer == "served"
    assert len(errors) == 1


def test_the_lead_survives_a_storm_of_deadlines() -> None:
    """Callers that give up at any moment, served or not, never take the lead with them."""
    rng = random.Random(7)
    server = Server(most=4, pause=lambda: time.sleep(rng.random() * 0.001))
    answers: list[str] = []

    def caller(seed: int) -> None:
        luck = random.Random(seed)
        for _ in range(40):
            timeout_s = luck.choice((0.0, 0.0005, 0.001, 0.002, 1.0))
            try:
                if luck.random() < 0.1:
                    deadline = time.monotonic() + timeout_s
                    server.commit.in_turn(deadline, lambda _batch: time.sleep(0.0002))
                else:
                    server.commit.run(Asked(timeout_s))
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
    last = Asked()
    server.commit.run(last)
    assert last.answer == "served"
    assert (server.commit.pending, len(server.commit)) == (0, 0)
    assert server.mended == 0


def _stopped(queue: CallQueue[Asked], calls: list[Asked]) -> None:
    """A leader that took the calls, and ended without a word."""
    waiter = ThreadWaiter(sys._getframe())
    queue.join(waiter)
    for call in calls:
        queue.submit(call)
    queue.begin(waiter).take(99)


def test_what_a_stopped_leader_took_is_put_back_answered_or_told_to_be_in_doubt() -> None:
    """By the next leader, before it begins; in the order in which they came."""
    server = Server()
    waiting, in_flight, answered, gone = (Asked() for _ in range(4))
    late = Asked()
    _stopped(server.commit, [waiting, in_flight, answered, gone])
    in_flight.in_flight = answered.in_flight = True
    answered.answer = "written"
    assert not gone.done
    server.commit.withdraw(gone)
    server.commit.run(late)
    assert (waiting.answer, late.answer) == ("served", "served")
    assert str(in_flight.error) == "in doubt"
    assert (answered.answer, answered.done) == ("written", True)
    assert gone.answer is None
    assert (server.sizes, server.mended) == ([2], 1)


def test_who_is_answered_by_repairing_leads_on_alone() -> None:
    """It was in the batch of the leader that was stopped, and leads now: nobody else may, yet."""
    inside, most = 0, 0
    entered, go = threading.Event(), threading.Event()

    def serve(batch: Batch[Asked], _deadline: float) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        entered.set()
        go.wait(1)
        for call in batch.take(9):
            call.answer = "served"
        inside -= 1

    commit: GroupCommit[Asked] = GroupCommit(serve, lambda _batch: None, _in_doubt)
    taken, other = Asked(), Asked()

    def vanish() -> None:
        """Leads while the first two wait behind it, takes the call of the first, and ends."""
        waiter = ThreadWaiter(sys._getframe())
        commit.join(waiter)
        commit.begin(waiter)
        threads[0].start()
        until(lambda: commit.pending == 1)
        batch = commit.unfinished
        assert batch is not None
        batch.take(9)
        taken.answer = "written"
        threads[1].start()
        until(lambda: commit.pending == 1)

    threads = [threading.Thread(target=commit.run, args=(call,)) for call in (taken, other)]
    vanish()
    assert entered.wait(5)
    time.sleep(0.1)
    go.set()
    for thread in threads:
        thread.join(5)
    assert (taken.answer, other.answer) == ("written", "served")
    assert most == 1


def test_who_gives_up_while_nothing_is_sent_is_certain_of_it() -> None:
    """Waiting or taken; in doubt only with a write under way."""
    queue: CallQueue[Asked] = CallQueue()
    waiting, taken, sent = (Asked() for _ in range(3))
    for call in (waiting, taken, sent):
        queue.submit(call)
    queue.begin().take(99)
    queue.submit(waiting)
    sent.in_flight = True
    assert queue.withdraw(waiting)
    assert queue.withdraw(taken)
    assert not queue.withdraw(sent)
    assert waiting.has_left


def test_a_call_that_was_given_up_is_not_taken() -> None:
    """Nor put back: nobody waits for it."""
    server = Server()
    given_up = Asked()
    server.commit.submit(given_up)
    given_up.has_left = True
    served = Asked()
    server.commit.run(served)
    assert (given_up.answer, served.answer) == (None, "served")
    assert server.commit.pending == 0


def test_a_caller_that_is_late_is_told_whether_it_is_in_doubt() -> None:
    """At its own deadline, whatever the leader does."""
    entered, go = threading.Event(), threading.Event()

    def serve(batch: Batch[Asked], _deadline: float) -> None:
        calls = batch.take(9)
        entered.set()
        for call in calls:
            call.in_flight = True
        go.wait(5)
        for call in calls:
            call.answer = "served"

    commit: GroupCommit[Asked] = GroupCommit(serve, lambda _batch: None, _in_doubt)
    first = threading.Thread(target=commit.run, args=(Asked(),))
    first.start()
    assert entered.wait(5)
    with pytest.raises(LateError) as late:
        commit.run(Asked(0.05))
    assert not late.value.in_doubt
    go.set()
    first.join(5)
