"""The queue itself: order of arrival, those who are gone, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from penstock._queueing import Mutex, Place, Queue, Queues, ThreadWaiter
from penstock._queueing.tasks import Event, TaskPlace, TaskWaiter
from tests.support.helpers import frantic_switching, run


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def ended_frame() -> FrameType:
    return sys._getframe()


def test_the_first_leads_and_the_next_in_order_follows() -> None:
    """Who leaves from the middle is not missed."""
    queue, frame = Queue(), sys._getframe()
    first, second, third = (ThreadWaiter(frame) for _ in range(3))
    for waiter in (first, second, third):
        queue.join(waiter)
    assert queue.leads(first)
    assert not queue.leads(second)
    queue.leave(second)
    queue.leave(first)
    assert queue.leads(third)
    queue.leave(third)
    assert len(queue) == 0


def test_whoever_ended_without_leaving_is_passed_over() -> None:
    """At the front and behind it; an exception that is still held does not keep a frame alive."""
    queue = Queue()
    held: list[BaseException] = []

    def vanish() -> None:
        queue.join(ThreadWaiter(sys._getframe()))
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as caught:
            vanish()
        held.append(caught.value)
    last = ThreadWaiter(sys._getframe())
    queue.join(last)
    assert len(queue) == 3
    assert queue.leads(last)
    assert len(queue) == 1


def test_a_frame_is_there_as_long_as_it_runs_whatever_it_calls() -> None:
    """Seen from another thread, deep below it, and after it has returned."""
    entered, go = threading.Event(), threading.Event()
    waiters: list[ThreadWaiter] = []

    def below(depth: int) -> None:
        if depth:
            below(depth - 1)
        else:
            entered.set()
            go.wait(20)

    def above() -> None:
        waiters.append(ThreadWaiter(sys._getframe()))
        below(50)

    thread = threading.Thread(target=above)
    thread.start()
    assert entered.wait(20)
    assert waiters[0].is_there()
    go.set()
    thread.join(20)
    assert not waiters[0].is_there()


def test_a_leader_may_choose_its_heir() -> None:
    """Who stands there twice for that leaves once."""
    queue, frame = Queue(), sys._getframe()
    first, second, third = (ThreadWaiter(frame) for _ in range(3))
    for waiter in (first, second, third):
        queue.join(waiter)
    queue.leave(first, heir=third)
    assert queue.leads(third)
    queue.leave(third)
    assert queue.leads(second)
    assert len(queue) == 1


def test_a_slow_leader_can_be_passed_over() -> None:
    """From an instant on that it has set itself."""
    queue, frame = Queue(), sys._getframe()
    slow, next_one = ThreadWaiter(frame), ThreadWaiter(frame)
    slow.passed_over_at = time.monotonic() + 0.02
    queue.join(slow)
    queue.join(next_one)
    assert not queue.leads(next_one)
    time.sleep(0.03)
    assert queue.leads(next_one)
    assert slow.is_running()


def test_who_waits_finds_out_that_the_leader_has_ended() -> None:
    """Nobody wakes it, and nobody comes."""
    queue = Queue()
    queue.join(ThreadWaiter(ended_frame()))

    def wait() -> None:
        waiter = ThreadWaiter(sys._getframe())
        queue.join(waiter)
        while not queue.leads(waiter):
            waiter.rest()
        queue.leave(waiter)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_tasks_whose_loop_was_closed_are_passed_over() -> None:
    """And those that have ended; a task that runs is waited for."""
    queue, loop = Queue(), asyncio.new_event_loop()
    held: list[Any] = []

    async def stand() -> None:
        woken = Event()
        held.append(woken)
        queue.join(TaskWaiter(woken, asyncio.get_running_loop()))
        await asyncio.sleep(60)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(stand())
        await asyncio.sleep(0)
        return task

    tasks = [loop.run_until_complete(begin()) for _ in range(2)]
    last = ThreadWaiter(sys._getframe())
    queue.join(last)
    assert not queue.leads(last)
    tasks[0].cancel()
    loop.run_until_complete(asyncio.sleep(0))
    assert not queue.leads(last)
    assert len(queue) == 2
    loop.close()
    assert queue.leads(last)
    tasks[1]._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_queue_does_not_keep_a_task_alive() -> None:
    """One whose loop was closed under it, and that nobody else holds."""
    queues: Queues[Queue] = Queues(Queue)
    frame_holder = ThreadWaiter(sys._getframe())
    queues.join("k", frame_holder)
    loop = asyncio.new_event_loop()

    async def stand() -> None:
        place = TaskPlace.of_task(queues, "k", asyncio.get_running_loop())
        assert place is not None
        async with place:
            pass

    async def begin() -> None:
        task = asyncio.create_task(stand())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    loop.run_until_complete(begin())
    queue = queues.get("k")
    assert queue is not None
    assert len(queue) == 2
    loop.close()
    del loop
    gc.collect()
    assert len(queue) == 1, "the collector ended it, and it left"


def test_threads_are_served_in_order_of_arrival() -> None:
    """And one that gives up does not hold up those behind it."""
    queues: Queues[Queue] = Queues(Queue)
    order: list[int] = []
    go = threading.Event()

    def stand(number: int) -> None:
        place = Place.of_thread(queues, "k", sys._getframe())
        assert place is not None
        if number == 2:
            go.wait(20)
            place.leave()
            return
        with place:
            if number == 0:
                go.wait(20)
            order.append(number)

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=stand, args=(number,)))
        threads[-1].start()
        until(lambda number=number: (queue := queues.get("k")) and len(queue) == number + 1)
    go.set()
    for thread in threads:
        thread.join(20)
    assert order == [0, 1, 3, 4]
    assert len(queues) == 0


def test_a_failure_is_shared_with_those_who_waited_only() -> None:
    """Who joined later has heard nothing."""
    queues: Queues[Queue] = Queues(Queue)
    frame = sys._getframe()
    first, second = (Place.of_thread(queues, "k", frame) for _ in range(2))
    assert first is not None
    assert second is not None
    error = ValueError("no")
    first.share(error)
    late = Place.of_thread(queues, "k", frame)
    assert late is not None
    first.leave()
    assert (second.failure, late.failure) == (error, None)
    second.leave()
    late.leave()
    assert len(queues) == 0


def test_a_queue_may_turn_somebody_away() -> None:
    """And is not there for that when nobody stands in it."""
    queues: Queues[Queue] = Queues(Queue)
    frame = sys._getframe()
    assert Place.of_thread(queues, "k", frame, lambda _queue: False) is None
    assert len(queues) == 0
    place = Place.of_thread(queues, "k", frame)
    assert place is not None
    with place:
        assert Place.of_thread(queues, "k", frame, lambda queue: not len(queue)) is None


def test_threads_and_tasks_on_many_keys_exclude_each_other_per_key() -> None:
    """Threads that change places as often as they can; no queue is left, and none is lost."""
    queues: Queues[Queue] = Queues(Queue)
    inside = dict.fromkeys("abc", 0)
    done: list[str] = []

    def use(key: str) -> None:
        inside[key] += 1
        assert inside[key] == 1
        inside[key] -= 1
        done.append(key)

    def in_threads(number: int) -> None:
        for turn in range(100):
            key = "abc"[(number + turn) % 3]
            place = Place.of_thread(queues, key, sys._getframe())
            assert place is not None
            with place:
                use(key)

    async def in_tasks(number: int) -> None:
        for turn in range(100):
            key = "abc"[(number + turn) % 3]
            place = TaskPlace.of_task(queues, key, asyncio.get_running_loop())
            assert place is not None
            async with place:
                use(key)
                await asyncio.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(*(in_tasks(number) for number in range(3)))

    with frantic_switching(), ThreadPoolExecutor(5) as pool:
        crowd = [pool.submit(in_threads, number) for number in range(4)]
        crowd.append(pool.submit(run, tasks()))
        for one in crowd:
            one.result(60)
    assert len(done) == 700
    assert len(queues) == 0


def test_a_mutex_lets_one_thread_in_at_a_time() -> None:
    """Threads that change places as often as they can."""
    mutex, inside, most = Mutex(), 0, 0

    def work(_number: int) -> None:
        nonlocal inside, most
        for _ in range(200):
            with mutex.hold():
                inside += 1
                most = max(most, inside)
                inside -= 1

    with frantic_switching(), ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert (inside, most) == (0, 1)


def test_a_mutex_lets_its_own_thread_in_again() -> None:
    """The collector runs anywhere, also in there, and may clean up after somebody in there."""
    mutex = Mutex()
    done: list[str] = []

    def work() -> None:
        with mutex.hold(), mutex.hold():
            done.append("inner")
        with mutex.hold():
            done.append("after")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    assert done == ["inner", "after"]
