"""Batches over several keys, without a network: conditions, lost replies, what is remembered."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock import StoreUnavailableError, fixed_window, token_bucket
from penstock.core._steps import Step
from penstock.core._transform import asking, checking, refunding
from penstock.stores.cas import TRAIL, AnyRequest, Check, Swap, SwapAll
from tests.stores import several
from tests.stores.cas.backend import LATE, LOST, REFUSED, DictCasStore, Records, lossy, once
from tests.stores.exactness import TwoLimits, assert_exact_from_tasks, assert_exact_from_threads
from tests.stores.mixtures import follow, requests
from tests.stores.several import NOW, PLENTY, InTurn, charged

BOTH = [Step(key, checking(PLENTY)) for key in "ab"]
WINDOW_MS = 864_000_000


def at_first(kind: type[AnyRequest], do: Callable[[], Any]) -> Callable[[AnyRequest], None]:
    """Does something at the first request of a kind."""
    left = [do]

    def hook(request: AnyRequest) -> None:
        if isinstance(request, kind) and left:
            left.pop()()

    return hook


@pytest.mark.parametrize("seed", range(4))
def test_random_mixtures_are_decided_as_by_the_oracle(seed: int) -> None:
    """By one store, and by two on the same data in turn."""
    assert min(follow(DictCasStore(), requests(seed, 300))) > 30
    records = Records()
    assert min(follow(InTurn(DictCasStore(records), DictCasStore(records)), requests(seed, 300)))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_lost_the_decisions_are_those_of_the_oracle(seed: int) -> None:
    """Every third request or reply."""
    store = DictCasStore()
    store.before, store.after = lossy(random.Random(seed)), lossy(random.Random(-seed))
    told = 0
    for step in range(60):
        before = {key: held.record for key, held in store.records.held.items()}
        try:
            store.apply_all(BOTH, NOW)
            told += 1
        except StoreUnavailableError as error:
            # Three faults in a row are too many; a doubt is told where there is one.
            if "was not charged" in str(error):
                assert before == {k: held.record for k, held in store.records.held.items()}, step
    clean = DictCasStore(store.records)
    both = {charged(clean, key) for key in "ab"}
    assert len(both) == 1
    assert both.pop() >= told > 20


@pytest.mark.parametrize(
    "holds",
    [
        several.assert_a_denial_charges_nothing,
        several.assert_a_key_named_twice_is_charged_twice,
        several.assert_foreign_state_charges_nothing,
    ],
)
def test_the_rule_of_all_or_nothing_holds(holds: Any) -> None:
    """See each of them."""
    holds(DictCasStore())


def test_two_requests_and_then_one() -> None:
    """A read and a write for keys not seen before, a write for keys remembered, a read for those
    who are denied or only look."""
    store = DictCasStore()
    log = store.records.log
    store.apply_all(BOTH, NOW)
    assert log == ["ReadAll", "SwapAll"]
    store.apply_all(BOTH, NOW)
    assert log[2:] == ["SwapAll"]
    store.apply_all([BOTH[0], BOTH[1]._replace(cost=PLENTY.limit)], NOW)
    store.apply_all([step._replace(cost=0) for step in BOTH], NOW)
    assert log[3:] == ["ReadAll", "ReadAll"]


def test_steps_on_one_key_are_a_batch_of_that_key() -> None:
    """It is written with those who check it, and by stores that cannot write several, too."""

    class One(DictCasStore):
        most_keys_at_once = 0

    store = One()
    steps = [Step("k", checking(PLENTY), 2), Step("k", checking(PLENTY), 3)]
    assert [d.remaining for d in store.apply_all(steps, NOW)] == [999_998, 999_995]
    assert store.records.log == ["Read", "Swap"]
    assert not store.is_atomic("")
    store.apply_all(BOTH, NOW)
    assert store.records.log[2:] == ["Read", "Swap"] * 2


def test_what_an_admission_looked_at_must_not_have_changed() -> None:
    """One key is only looked at; it is spent before the other is written, so neither is."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)
    narrow = fixed_window(1, WINDOW_MS)
    steps = [Step("looked at", asking(narrow)), Step("charged", checking(PLENTY))]
    store.before = at_first(SwapAll, lambda: other.apply("looked at", checking(narrow), NOW, 1))
    decisions = store.apply_all(steps, NOW)
    assert [decision.allowed for decision in decisions] == [False, True]
    assert charged(other, "charged") == 0


def test_a_condition_names_what_is_not_written() -> None:
    """And nothing else."""
    store = DictCasStore()
    seen: list[AnyRequest] = []
    store.before = seen.append
    steps = [Step("looked at", checking(PLENTY), 0), Step("charged", checking(PLENTY))]
    store.apply_all(steps, NOW)
    (write,) = (request for request in seen if isinstance(request, SwapAll))
    assert [(type(one), one.key) for one in write.writes] == [
        (Swap, "charged"),
        (Check, "looked at"),
    ]


def test_a_denial_is_never_by_memory_alone() -> None:
    """What this process remembers as spent has been reset by another."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)
    narrow = checking(fixed_window(1, WINDOW_MS))
    steps = [Step("narrow", narrow), Step("a", checking(PLENTY))]
    assert all(store.apply_all(steps, NOW))
    other.reset("narrow")
    assert all(store.apply_all(steps, NOW))
    assert charged(other, "a") == 2


def test_who_is_denied_in_a_batch_was_not_denied_by_memory() -> None:
    """Two callers share a write from what is remembered; the one that is denied writes nothing,
    and is right all the same."""
    records = Records()
    store, other = DictCasStore(records, delay_s=0.02), DictCasStore(records)
    narrow = checking(fixed_window(1, WINDOW_MS))
    spent = [Step("narrow", narrow), Step("x", checking(PLENTY))]
    assert all(store.apply_all(spent, NOW))
    assert all(store.apply_all(BOTH, NOW))
    other.reset("narrow")
    allowed: list[bool] = []
    requests = [BOTH, BOTH, spent, BOTH]
    threads = [
        threading.Thread(target=lambda s=steps: allowed.append(all(store.apply_all(s, NOW))))  # type: ignore[misc]
        for steps in requests
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert allowed == [True] * 4
    assert [charged(other, key) for key in "abx"] == [4, 4, 2]


@pytest.mark.parametrize("others", [0, 1, TRAIL - 2])
@pytest.mark.parametrize("key", ["a", "b", "both"])
def test_a_lost_reply_to_a_write_that_happened_is_found_out(others: int, key: str) -> None:
    """Even if others have written since: on one of the keys, or on both."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)

    def interfere() -> None:
        for _ in range(others):
            if key == "both":
                other.apply_all(BOTH, NOW)
            else:
                other.apply(key, checking(PLENTY), NOW, 1)
        raise LOST

    store.after = at_first(SwapAll, interfere)
    assert [decision.remaining for decision in store.apply_all(BOTH, NOW)] == [999_999] * 2
    spent = {name: 1 + others * (key in (name, "both")) for name in "ab"}
    assert {name: charged(other, name) for name in "ab"} == spent


def test_one_key_tells_where_the_other_has_been_written_too_often() -> None:
    """The id has left one trail, and is in the other."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)

    def interfere() -> None:
        for _ in range(TRAIL + 2):
            other.apply("a", checking(PLENTY), NOW, 1)
        raise LOST

    store.after = at_first(SwapAll, interfere)
    assert [decision.remaining for decision in store.apply_all(BOTH, NOW)] == [999_999] * 2
    assert charged(other, "b") == 1


def test_one_key_tells_that_it_was_not_written() -> None:
    """Where the other has been written too often to say; so it is no doubt, and written then."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)

    def interfere() -> None:
        for _ in range(TRAIL + 2):
            other.apply("a", checking(PLENTY), NOW, 1)
        raise LOST

    store.before = at_first(SwapAll, interfere)
    decisions = store.apply_all(BOTH, NOW)
    assert [d.remaining for d in decisions] == [PLENTY.limit - TRAIL - 3, PLENTY.limit - 1]
    assert charged(other, "b") == 1


def test_a_write_under_too_many_others_on_all_keys_ends_in_doubt() -> None:
    """Nobody can know any more."""
    records = Records()
    store, other = DictCasStore(records), DictCasStore(records)

    def interfere() -> None:
        for _ in range(TRAIL + 2):
            other.apply_all(BOTH, NOW)
        raise LOST

    store.after = at_first(SwapAll, interfere)
    with pytest.raises(StoreUnavailableError, match="may have been charged"):
        store.apply_all(BOTH, NOW)


@pytest.mark.parametrize("fault", [LOST, REFUSED], ids=["lost", "refused"])
def test_a_lost_request_is_written_once(fault: Exception) -> None:
    """It never arrived."""
    store = DictCasStore()
    store.before = once(SwapAll, fault)
    assert [decision.remaining for decision in store.apply_all(BOTH, NOW)] == [999_999] * 2
    assert [charged(store, key) for key in "ab"] == [1, 1]


def test_a_write_that_arrives_late_is_recognized() -> None:
    """After it was looked for, and before the next attempt: which then finds its id."""
    store = DictCasStore()
    late: list[AnyRequest] = []

    def lose(request: AnyRequest) -> None:
        if isinstance(request, SwapAll) and not late:
            late.append(request)
            raise LOST
        if isinstance(request, SwapAll) and len(late) == 1:
            late.append(request)
            store.records.perform(late[0])

    store.before = lose
    assert [decision.remaining for decision in store.apply_all(BOTH, NOW)] == [999_999] * 2
    assert [charged(store, key) for key in "ab"] == [1, 1]


def test_a_lost_reply_to_deletes_is_found_out() -> None:
    """They leave no trail, but no key either."""
    store = DictCasStore()
    first = fixed_window(5, WINDOW_MS, "first")
    store.apply_all([Step(key, checking(first), 2) for key in "ab"], NOW)
    store.after = once(SwapAll, LOST)
    steps = [Step(key, refunding(first, NOW), 2) for key in "ab"]
    assert store.apply_all(steps, NOW) == [2, 2]
    assert store.records.held == {}


def test_a_deadline_in_a_write_ends_in_doubt() -> None:
    """The reply may be on its way."""
    store = DictCasStore()
    store.after = once(SwapAll, LATE)
    with pytest.raises(StoreUnavailableError, match="may have been charged"):
        store.apply_all(BOTH, NOW)


def test_a_failing_call_fails_alone() -> None:
    """A key that holds something else takes nobody down that shares the batch."""
    store = DictCasStore(delay_s=0.02)
    store.apply("foreign", checking(token_bucket(5, 1)), NOW, 1)
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        name = "foreign" if number % 3 == 0 else f"own{number}"
        try:
            answers[number] = store.apply_all([*BOTH, Step(name, checking(PLENTY))], NOW)
        except Exception as error:
            answers[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    failed = {number for number, answer in answers.items() if isinstance(answer, Exception)}
    assert failed == {0, 3, 6}
    assert [charged(store, key) for key in "ab"] == [6, 6]


def test_two_limits_admit_exactly() -> None:
    """From threads and from tasks, on two stores that share what they keep."""
    records = Records()
    assert_exact_from_threads(lambda: DictCasStore(records), TwoLimits)
    assert_exact_from_tasks(lambda: DictCasStore(records), TwoLimits)


def test_callers_in_one_process_do_not_race_with_each_other() -> None:
    """They share batches, whatever their keys, as far as one write goes."""
    store = DictCasStore(delay_s=0.01)
    lost: list[AnyRequest] = []

    def count(request: AnyRequest) -> None:
        if isinstance(request, SwapAll):
            lost.append(request)

    store.before = count

    def ask(number: int) -> None:
        store.apply_all([*BOTH, Step(f"own{number}", checking(PLENTY))], NOW)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert charged(store, "a") == 40
    # Six callers fit with the two keys that all share, and every write succeeded.
    assert len(lost) < 30
    assert all(len(request.writes) <= 8 for request in lost if isinstance(request, SwapAll))
