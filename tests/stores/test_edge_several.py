"""Several steps as one decision, on the stores that compare and swap and their real backends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock import ConfigInvalidError, StoreUnavailableError, fixed_window
from penstock.core._steps import Step
from penstock.core._transform import asking, checking, peeking, refunding
from penstock.stores.cas import CasStore, ConnectionFailedError, SwapAll
from tests.stores import edge, several
from tests.stores.exactness import (
    TwoLimits,
    assert_exact_from_processes,
    assert_exact_from_tasks,
    assert_exact_from_threads,
)
from tests.stores.mixtures import follow, requests
from tests.stores.several import NOW, PLENTY, InTurn, OnALoop, charged

atomic = pytest.mark.parametrize("name", edge.ATOMIC)
in_order = pytest.mark.parametrize("name", edge.IN_ORDER)
WINDOW_MS = 864_000_000


@pytest.mark.parametrize("name", [*edge.ATOMIC, *edge.IN_ORDER, "workers-kv"])
def test_each_says_whether_it_lets_nobody_in_between(name: str) -> None:
    """The truth, since users rely on it."""
    store = edge.open_empty(name)
    assert store.is_atomic("") is (name in edge.ATOMIC)
    store.close()


@atomic
def test_random_mixtures_are_decided_as_by_the_oracle(name: str) -> None:
    """By two stores on the same data in turn, what each remembers being out of date, and by an
    event loop."""
    url = edge.url_of(name)
    stores = [edge.opened(url), edge.opened(url)]
    assert min(follow(InTurn(*stores), requests(1, 60), "sync:")) > 8
    assert min(follow(stores[0], requests(2, 60), "alone:")) > 8
    for store in stores:
        store.close()
    loop = OnALoop(edge.opened(url))
    follow(loop, requests(3, 60), "async:")
    loop.close()


@atomic
@pytest.mark.parametrize(
    "holds",
    [
        several.assert_a_denial_charges_nothing,
        several.assert_a_key_named_twice_is_charged_twice,
        several.assert_foreign_state_charges_nothing,
    ],
)
def test_the_rule_of_all_or_nothing_holds(name: str, holds: Any) -> None:
    """See each of them."""
    store = edge.open_empty(name)
    holds(store)
    store.close()


@pytest.mark.parametrize("name", [*edge.ATOMIC, *edge.IN_ORDER])
def test_a_request_without_steps_is_admitted(name: str) -> None:
    """There is nothing to deny it."""
    store = edge.open_empty(name)
    assert store.apply_all([], NOW) == []
    store.close()


@atomic
def test_two_limits_admit_exactly_from_threads(name: str) -> None:
    """50 of 200, and both keys charged with 50."""
    assert_exact_from_threads(partial(edge.opened, edge.url_of(name)), TwoLimits)


@atomic
def test_two_limits_admit_exactly_from_tasks(name: str) -> None:
    """50 of 200, and both keys charged with 50."""
    assert_exact_from_tasks(partial(edge.opened, edge.url_of(name)), TwoLimits)


@atomic
def test_two_limits_admit_exactly_from_processes(name: str) -> None:
    """50 of 200 in four processes, and both keys charged with 50."""
    assert_exact_from_processes(partial(edge.opened, edge.url_of(name)), "sync", TwoLimits)


@atomic
def test_what_was_admitted_was_charged_to_the_unit(name: str) -> None:
    """Checks of one key, of many and of several as one, by two stores on the same data."""
    url = edge.url_of(name)
    several.assert_what_was_admitted_was_charged([edge.opened(url), edge.opened(url)])


@atomic
def test_a_look_sees_both_or_neither(name: str) -> None:
    """All keys are read at one instant."""
    url = edge.url_of(name)
    writer, reader = edge.opened(url), edge.opened(url)
    several.assert_a_look_sees_both_or_neither(writer, reader)
    writer.close()
    reader.close()


class Between:
    """Between a store and its backend: meets the first write of several keys with `do`, which may
    send it."""

    def __init__(self, store: CasStore, do: Callable[[Callable[[], list[Any]]], list[Any]]) -> None:
        self._serve = store.serve
        self._do = do
        self.met = 0
        store.serve = self.serve  # type: ignore[method-assign]

    def serve(self, asked: Any, deadline: float) -> list[Any]:
        if self.met or not any(isinstance(one, SwapAll) for one in asked):
            return self._serve(asked, deadline)
        self.met += 1
        return self._do(lambda: self._serve(asked, deadline))


@atomic
@pytest.mark.parametrize("changed", ["looked at", "first", "last"])
@pytest.mark.parametrize("are_new", [True, False], ids=["new keys", "old keys"])
def test_nothing_is_written_if_any_key_has_changed(name: str, changed: str, are_new: bool) -> None:
    """Not even where it was only looked at: the request is decided anew."""
    url = edge.url_of(name)
    store, other = edge.opened(url), edge.opened(url)
    steps = [Step(key, checking(PLENTY)) for key in ("first", "looked at", "last")]
    if not are_new:
        store.apply_all(steps, NOW)
    steps[1] = steps[1]._replace(cost=0)

    def meddle(send: Callable[[], list[Any]]) -> list[Any]:
        other.apply(changed, checking(PLENTY), NOW, 500)
        return send()

    between = Between(store, meddle)
    store.apply_all(steps, NOW)
    assert between.met == 1
    before = 0 if are_new else 1
    spent = {"first": before + 1, "looked at": before, "last": before + 1}
    spent[changed] += 500
    assert {key: charged(other, key) for key in spent} == spent
    # A decision on what was read first would name one unit more.
    looked_at = PLENTY.limit - spent["looked at"]
    assert store.apply_all([steps[1], steps[0]], NOW)[0].remaining == looked_at
    store.close()
    other.close()


@atomic
def test_a_look_that_comes_to_nothing_charges_nothing(name: str) -> None:
    """What was only looked at is spent by another before the others are written: all denied."""
    url = edge.url_of(name)
    store, other = edge.opened(url), edge.opened(url)
    narrow = fixed_window(1, WINDOW_MS)
    steps = [
        Step("narrow", asking(narrow)),
        Step("a", checking(PLENTY)),
        Step("b", checking(PLENTY)),
    ]

    def meddle(send: Callable[[], list[Any]]) -> list[Any]:
        other.apply("narrow", checking(narrow), NOW, 1)
        return send()

    Between(store, meddle)
    decisions = store.apply_all(steps, NOW)
    assert [decision.allowed for decision in decisions] == [False, True, True]
    assert [decision.remaining for decision in decisions] == [0, PLENTY.limit, PLENTY.limit]
    assert [charged(other, key) for key in "ab"] == [0, 0]
    store.close()
    other.close()


@atomic
@pytest.mark.parametrize("is_sent", [True, False], ids=["written", "not written"])
def test_a_lost_reply_is_found_out(name: str, is_sent: bool) -> None:
    """Charged once, whether it was written or not."""
    url = edge.url_of(name)
    store = edge.opened(url)

    def lose(send: Callable[[], list[Any]]) -> list[Any]:
        if is_sent:
            send()
        return [ConnectionFailedError("the reply was lost", may_have_run=True, again=True)]

    between = Between(store, lose)
    steps = [Step(key, checking(PLENTY)) for key in "abc"]
    for spent in (1, 2):
        decisions = store.apply_all(steps, NOW)
        assert [d.remaining for d in decisions] == [PLENTY.limit - spent] * 3
    assert between.met == 1
    assert [charged(store, key) for key in "abc"] == [2, 2, 2]
    store.close()


@atomic
def test_keys_are_deleted_together(name: str) -> None:
    """A refund of all that opened a window leaves nothing, of any of them; and beside a key that
    is written."""
    store = edge.open_empty(name)
    first = fixed_window(5, WINDOW_MS, "first")
    charge = [Step(key, checking(first), 2) for key in "ab"]
    give_back = [Step(key, refunding(first, NOW), 2) for key in "ab"]
    store.apply_all(charge, NOW)
    assert store.apply_all(give_back, NOW) == [2, 2]
    assert [d.remaining for d in store.apply_all(charge, NOW)] == [3, 3]
    mixed = [*give_back, Step("c", checking(PLENTY))]
    assert store.apply_all(mixed, NOW)[:2] == [2, 2]
    assert charged(store, "c") == 1
    assert [d.remaining for d in store.apply_all(charge, NOW)] == [3, 3]
    store.close()


@atomic
def test_more_keys_than_one_write_takes_are_refused(name: str) -> None:
    """Before anything is charged; calls that only have to share one are split instead."""
    store = edge.open_empty(name)
    most = store.most_keys_at_once
    steps = [Step(f"k{number}", checking(PLENTY)) for number in range(most + 1)]
    with pytest.raises(ConfigInvalidError, match=f"at most {most} keys at once, not {most + 1}"):
        store.apply_all(steps, NOW)
    assert all(store.apply_all(steps[:most], NOW))
    assert all(store.apply_all(steps[1:], NOW))
    assert [charged(store, key) for key in ("k0", "k1", f"k{most}")] == [1, 2, 1]
    store.close()


@atomic
def test_tasks_with_keys_of_their_own_share_writes(name: str) -> None:
    """Thirty callers with two keys each and one in common."""
    store = edge.open_empty(name)

    async def ask(number: int) -> bool:
        keys = (f"user{number}", f"team{number % 7}", "all")
        return all(await store.aapply_all([Step(key, checking(PLENTY)) for key in keys], NOW))

    async def crowd() -> list[bool]:
        answers = await asyncio.gather(*map(ask, range(30)))
        await store.aclose()
        return answers

    assert asyncio.run(crowd()) == [True] * 30
    assert charged(store, "all") == 30
    assert charged(store, "user3") == 1
    store.close()


def test_a_killed_server_leaves_both_keys_charged_or_neither() -> None:
    """kill -9 at any moment of a write: nothing lost, nothing invented."""
    steps = [Step(key, checking(PLENTY)) for key in "ab"]
    told = doubts = 0
    with edge.new_server("deno-kv") as server:
        url = edge.url_of("deno-kv", server.port, timeout_ms=2_000)
        for _ in range(3):
            store = edge.opened(url)
            store.apply_all(steps, NOW)
            told += 1
            killer = threading.Timer(0.1, server.kill)
            killer.start()
            try:
                while True:
                    store.apply_all(steps, NOW)
                    told += 1
            except StoreUnavailableError as error:
                doubts += "may have been charged" in str(error)
            killer.join()
            store.close()
            server.restart()
        store = edge.opened(url)
        both = {charged(store, key) for key in "ab"}
        store.close()
    assert len(both) == 1
    assert 0 < told <= both.pop() <= told + doubts


@in_order
def test_in_order_nothing_is_admitted_beyond_the_limit_and_nothing_stays_charged(
    name: str,
) -> None:
    """At 8 and 12 from threads on two stores, in either order: never more than 8, somebody may
    have been denied what was given back, and both keys are charged as often as was admitted."""
    url = edge.url_of(name)
    stores = [edge.opened(url), edge.opened(url)]
    limits = {"narrow": fixed_window(8, WINDOW_MS), "wide": fixed_window(12, WINDOW_MS)}
    steps = [Step(key, checking(strategy)) for key, strategy in limits.items()]
    answers: list[bool] = []

    def ask(number: int) -> None:
        order = steps if number % 4 < 2 else steps[::-1]
        answers.append(all(stores[number % 2].apply_all(order, NOW)))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 32
    assert 0 < sum(answers) <= 8
    for key, strategy in limits.items():
        left = stores[0].apply(key, peeking(strategy), NOW, 1).remaining
        assert strategy.limit - left == sum(answers), key
    for store in stores:
        store.close()


@in_order
def test_in_order_a_denial_is_given_back(name: str) -> None:
    """One after the other, the decisions are those of an atomic store."""
    store = edge.open_empty(name)
    several.assert_a_denial_charges_nothing(store)
    store.close()


def test_a_server_without_transactions_is_told_apart() -> None:
    """The error says what to do."""
    url = edge.url_of("dynamodb").replace("&transactions=off", "")
    store = edge.opened(url)
    assert store.is_atomic("")
    with pytest.raises(ConfigInvalidError, match="transactions=False"):
        store.apply_all([Step(key, checking(PLENTY)) for key in "ab"], NOW)
    store.close()
