"""Callers of one process: they share what is asked, and never race."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import pytest

from penstock import ConfigInvalidError, StoreUnavailableError, fixed_window, gcra, rate_limit
from penstock.core._transform import Transform, checking, peeking
from penstock.stores.cas import Read, Request, Swap
from penstock.stores.cas import _callers as callers
from tests.stores.cas.backend import LATE, REFUSED, DictCasStore, Records, once

HOUR_MS = 3_600_000
NOW = 1_700_000_000_000
CHECK = checking(fixed_window(50, HOUR_MS))
PEEK = peeking(fixed_window(50, HOUR_MS))

each_mode = pytest.mark.parametrize("mode", ["sync", "async"])


def _threads(count: int, call: object) -> None:
    crowd = [threading.Thread(target=call, daemon=True) for _ in range(count)]  # type: ignore[arg-type]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(30)
        assert not thread.is_alive()


def _apply_many(
    store: DictCasStore, mode: str, keys: list[str], transform: Transform[Any] = CHECK
) -> list[Any]:
    if mode == "sync":
        return store.apply_many(keys, transform, NOW, 1)
    return asyncio.run(store.aapply_many(keys, transform, NOW, 1))


def test_200_tasks_on_one_key_share_a_few_round_trips() -> None:
    """All finish, 50 are admitted, and it takes as long as two callers one after the other."""
    store = DictCasStore(delay_s=0.05)

    async def crowd() -> list[bool]:
        limiter = rate_limit(fixed_window(50, HOUR_MS), store=store)
        return [bool(d) for d in await asyncio.gather(*(limiter.acheck("k") for _ in range(200)))]

    start = time.monotonic()
    assert sum(asyncio.run(crowd())) == 50
    # One reads and writes; the 199 who came meanwhile go together, and remember what it wrote.
    assert store.trips == 3
    assert time.monotonic() - start < 2


def test_200_threads_on_one_key_share_round_trips() -> None:
    """As with tasks, but for how many arrive before the first has read."""
    store = DictCasStore(delay_s=0.05)
    answers: list[bool] = []
    _threads(200, lambda: answers.append(store.apply("k", CHECK, NOW, 1).allowed))
    assert (len(answers), sum(answers)) == (200, 50)
    assert store.trips < 20


def test_sync_and_async_callers_wait_in_one_queue() -> None:
    """Threads and tasks on the same key of the same store, at once."""
    store = DictCasStore(delay_s=0.01)
    answers: list[bool] = []

    async def tasks() -> None:
        decisions = await asyncio.gather(*(store.aapply("k", CHECK, NOW, 1) for _ in range(50)))
        answers.extend(decision.allowed for decision in decisions)

    loops = [threading.Thread(target=lambda: asyncio.run(tasks())) for _ in range(2)]
    for loop in loops:
        loop.start()
    _threads(50, lambda: answers.append(store.apply("k", CHECK, NOW, 1).allowed))
    for loop in loops:
        loop.join(30)
    assert (len(answers), sum(answers)) == (150, 50)


def test_keys_do_not_wait_for_each_other() -> None:
    """Twenty keys take as long as one."""
    store = DictCasStore(delay_s=0.1)

    async def crowd() -> None:
        await asyncio.gather(*(store.aapply(f"k{n}", CHECK, NOW, 1) for n in range(20)))

    start = time.monotonic()
    asyncio.run(crowd())
    assert time.monotonic() - start < 1


def test_a_call_of_many_keys_takes_the_round_trips_of_one() -> None:
    """Repeated keys are decided in order, different ones side by side, sync and async."""
    keys = ["a", "b", "a", "c", "a"]
    store = DictCasStore()
    assert [d.remaining for d in store.apply_many(keys, CHECK, NOW, 1)] == [49, 49, 48, 49, 47]
    assert store.trips == 2
    again = asyncio.run(store.aapply_many(keys, CHECK, NOW, 1))
    assert [d.remaining for d in again] == [46, 48, 45, 48, 44]
    assert store.trips == 3
    many = [f"k{n}" for n in range(100)]
    assert len(store.apply_many(many, CHECK, NOW, 1)) == 100
    assert store.trips == 3 + 2 * 4


@each_mode
def test_an_outage_after_some_keys_says_that_those_were_charged(mode: str) -> None:
    """Requests fail from the 33rd key of 64 on, when 32 have been written; peeks charge nothing."""
    store = DictCasStore()
    keys = [f"k{n}" for n in range(64)]

    def fail(request: Request) -> None:
        if int(request.key[1:]) >= 32:
            raise REFUSED

    store.before = fail
    told = "was not charged; other keys of this call have been charged$"
    with pytest.raises(StoreUnavailableError, match=told):
        _apply_many(store, mode, keys)
    assert len(store.records.held) == 32
    with pytest.raises(StoreUnavailableError, match=r"was not charged$"):
        _apply_many(store, mode, keys, PEEK)


@each_mode
def test_a_foreign_key_among_others_says_that_those_were_charged(mode: str) -> None:
    """Only where one of them was: a denied key, or a key twice, is no other key charged."""
    store = DictCasStore()
    store.apply("foreign", checking(gcra(5, 1_000)), NOW, 1)
    told = "something else.*; other keys of this call have been charged$"
    with pytest.raises(ConfigInvalidError, match=told):
        _apply_many(store, mode, ["a", "foreign", "b"])
    assert [store.apply(key, PEEK, NOW, 1).remaining for key in "ab"] == [49, 49]
    store.apply("a", CHECK, NOW, 49)
    with pytest.raises(ConfigInvalidError, match="something else") as caught:
        _apply_many(store, mode, ["a", "foreign", "foreign"])
    assert "other keys" not in str(caught.value)


@each_mode
def test_an_error_tells_of_other_keys_that_are_in_doubt(mode: str) -> None:
    """One key cannot be read, the reply to the write of another is lost."""
    store = DictCasStore()

    def fail(request: Request) -> None:
        if request.key == "a":
            raise REFUSED

    store.before, store.after = fail, once(Swap, LATE)
    told = "refused; .* was not charged; other keys of this call may have been charged$"
    with pytest.raises(StoreUnavailableError, match=told):
        _apply_many(store, mode, ["a", "b"])
    store.after = once(Read, LATE)
    with pytest.raises(StoreUnavailableError, match=r"was not charged$"):
        _apply_many(store, mode, ["a", "c"])


@each_mode
def test_a_call_of_many_keys_has_one_deadline(mode: str) -> None:
    """Not one for each 32 of them; what was written before it is told."""
    store = DictCasStore(delay_s=0.1, timeout_ms=350)
    start = time.monotonic()
    told = "no time left.* was not charged; other keys of this call have been charged$"
    with pytest.raises(StoreUnavailableError, match=told):
        _apply_many(store, mode, [f"k{n}" for n in range(320)])
    assert time.monotonic() - start < 0.8
    assert len(store.records.held) in (32, 64)


def test_calls_of_many_keys_in_opposite_order_do_not_block_each_other() -> None:
    """Everybody finishes: nobody waits for a key while holding up another."""
    store = DictCasStore(delay_s=0.001, timeout_ms=20_000)
    keys = [f"k{n}" for n in range(8)]
    unlimited = checking(fixed_window(10**6, HOUR_MS))
    turns = iter(range(1_000))

    def call() -> None:
        for _ in range(5):
            order = keys if next(turns) % 2 else keys[::-1]
            store.apply_many(order, unlimited, NOW, 1)

    _threads(12, call)
    left = {store.apply(key, unlimited, NOW, 1).remaining for key in keys}
    assert left == {10**6 - 12 * 5 - 1}


def test_cancelling_one_caller_does_not_fail_the_others() -> None:
    """Neither one that leads nor one that waits; what was under way is finished."""
    store = DictCasStore(delay_s=0.05)

    async def crowd() -> list[int]:
        calls = [asyncio.create_task(store.aapply("k", CHECK, NOW, 1)) for _ in range(6)]
        await asyncio.sleep(0.01)
        calls[0].cancel()
        calls[3].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in results] == [
            *(True, False, False),
            *(True, False, False),
        ]
        return [one.remaining for one in results if not isinstance(one, BaseException)]

    # The first had only been read for: neither is charged.
    assert asyncio.run(crowd()) == [49, 48, 47, 46]


def test_a_line_goes_on_when_a_loop_has_closed() -> None:
    """A task that waits in a loop which ends is passed over."""
    store = DictCasStore(delay_s=0.2)
    first = threading.Thread(target=lambda: store.apply("k", CHECK, NOW, 1))

    async def wait_briefly() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(store.aapply("k", CHECK, NOW, 1), 0.05)

    first.start()
    time.sleep(0.02)
    asyncio.run(wait_briefly())
    assert store.apply("k", CHECK, NOW, 1).remaining == 48
    first.join()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_who_waits_too_long_leaves_uncharged(mode: str) -> None:
    """The deadline counts the time in the line; the text says that nothing was charged."""
    records = Records()
    slow = DictCasStore(records, delay_s=0.5, timeout_ms=700)
    leader = threading.Thread(target=lambda: slow.apply("k", CHECK, NOW, 1))
    leader.start()
    time.sleep(0.05)
    start = time.monotonic()
    calls = {
        "sync": lambda: slow.apply("k", CHECK, NOW, 1),
        "async": lambda: asyncio.run(slow.aapply("k", CHECK, NOW, 1)),
    }
    with pytest.raises(StoreUnavailableError, match=r"(no answer|no time).*was not charged"):
        calls[mode]()
    assert time.monotonic() - start > 0.4
    leader.join()
    assert DictCasStore(records).apply("k", CHECK, NOW, 1).remaining == 48
    assert len(slow.queues) == 0


def test_a_leader_that_is_stuck_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop was stopped and never went on: the next caller takes over, and the late one, should
    it ever go on, spoils nothing."""
    monkeypatch.setattr(callers, "GRACE_S", 0.1)
    store = DictCasStore(delay_s=0.2, timeout_ms=300)
    loop = asyncio.new_event_loop()

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(store.aapply("k", CHECK, NOW, 1), 0.05)

    loop.run_until_complete(give_up())
    with pytest.raises(StoreUnavailableError, match="no answer"):
        store.apply("k", CHECK, NOW, 1)
    time.sleep(0.15)
    store.busy.clear()
    store.delay_s = 0.0
    assert store.apply("k", CHECK, NOW, 1).remaining == 49
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    assert store.apply("k", CHECK, NOW, 1).remaining == 48
    assert len(store.queues) == 0


def test_clocks_far_apart_keep_a_record_long_enough() -> None:
    """A batch is kept for the slowest clock in it; a reset, which has none, does not count."""
    kept: list[int] = []
    store = DictCasStore(delay_s=0.05)
    store.before = lambda request: isinstance(request, Swap) and kept.append(request.keep_ms)  # type: ignore[assignment, return-value]

    async def crowd() -> None:
        first = asyncio.create_task(store.areset("k"))
        await asyncio.sleep(0.01)
        rest = [store.aapply("k", CHECK, now, 1) for now in (NOW, 10 * NOW)]
        await asyncio.gather(first, store.areset("k"), *rest)

    asyncio.run(crowd())
    assert kept[0] > 9 * NOW
    kept.clear()
    store.apply("other", CHECK, NOW, 1)
    assert HOUR_MS < kept[0] <= 4 * HOUR_MS


def test_nothing_is_kept_of_keys_that_are_idle() -> None:
    """A line exists while somebody stands in it."""
    store = DictCasStore()
    for number in range(100):
        store.apply(f"k{number}", CHECK, NOW, 1)
    asyncio.run(store.aapply("k", CHECK, NOW, 1))
    assert len(store.queues) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_callers() -> None:
    """Lines that were led in the parent are free in the child."""
    store = DictCasStore(delay_s=0.3, timeout_ms=5_000)
    leader = threading.Thread(target=lambda: store.apply("k", CHECK, NOW, 1))
    leader.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        store.busy.clear()
        os._exit(0 if store.apply("k", CHECK, NOW, 1).remaining == 49 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    leader.join()
