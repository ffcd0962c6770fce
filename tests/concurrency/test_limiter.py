"""Slots and leases, on a clock that is moved by hand."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigInvalidError, Decision, ManualClock, MemoryStore, UnsupportedError
from penstock.concurrency import Aimd, ConcurrencyLimiter, Gradient, SlotGrant
from tests.support.helpers import NOW


def pinned(limit: int, clock: ManualClock | None = None, **options: object) -> ConcurrencyLimiter:
    """A limiter whose ceiling does not move."""
    law = Gradient(limit, limit)
    return ConcurrencyLimiter(law, clock=clock or ManualClock(NOW), **options)  # type: ignore[arg-type]


def lease_of(grant: SlotGrant) -> str:
    assert grant.lease is not None
    return grant.lease.id


def test_as_many_are_in_flight_as_the_ceiling_says() -> None:
    """And the next one is told so."""
    limiter = pinned(2)
    first = limiter.admit()
    assert first.decision == Decision(True, 2, 1, NOW + 2_000, 0)
    assert limiter.admit().decision == Decision(True, 2, 0, NOW + 2_000, 0)
    refused = limiter.admit()
    assert refused.decision == Decision(False, 2, 0, NOW + 2_000, 1_000)
    assert refused.lease is None
    assert limiter.in_flight == 2


def test_a_released_slot_is_free_at_once() -> None:
    """And the decision says how many are left."""
    limiter = pinned(1)
    first = lease_of(limiter.admit())
    assert not limiter.admit().decision
    assert limiter.release(first)
    assert limiter.admit().decision


def test_releasing_twice_is_the_same_as_once() -> None:
    """The second time finds nothing, and frees nothing."""
    limiter = pinned(2)
    first = lease_of(limiter.admit())
    limiter.admit()
    assert limiter.release(first) is True
    assert limiter.release(first) is False
    assert limiter.release("no such lease") is False
    assert limiter.in_flight == 1


def test_a_lease_is_reclaimed_at_its_deadline_and_not_before() -> None:
    """To the millisecond, without anybody sweeping, and counted as dropped."""
    clock = ManualClock(NOW)
    limiter = pinned(1, clock)
    lost = lease_of(limiter.admit())
    clock.advance(1_999)
    assert not limiter.admit().decision
    assert limiter.reclaimed == 0
    clock.advance(1)
    assert limiter.admit().decision
    assert limiter.reclaimed == 1
    assert limiter.release(lost) is False


def test_slots_that_are_reclaimed_are_counted() -> None:
    """One that was given back in time is none of them."""
    clock = ManualClock(0)
    limiter = ConcurrencyLimiter(Gradient(min_limit=10, max_limit=10), clock=clock)
    limiter.admit()
    held = limiter.admit()
    assert held.lease is not None
    limiter.release(held.lease.id)
    clock.advance(limiter.lease_ttl_ms)
    assert limiter.sweep() == 1
    assert limiter.reclaimed == 1


def test_a_reclaimed_lease_contracts_the_ceiling() -> None:
    """A holder that died is a request that was lost."""
    clock = ManualClock(NOW)
    limiter = ConcurrencyLimiter(Aimd(1, 100, initial_limit=50, backoff=0.5), clock=clock)
    limiter.admit()
    clock.advance(2_000)
    assert limiter.sweep() == 1
    assert limiter.limit == 25


def test_a_release_after_the_deadline_comes_too_late() -> None:
    """Whoever was late is counted as dropped, whether or not anybody noticed meanwhile."""
    clock = ManualClock(NOW)
    limiter = pinned(1, clock)
    late = lease_of(limiter.admit())
    clock.advance(2_000)
    assert limiter.release(late) is False
    assert limiter.reclaimed == 1


def test_a_heartbeat_renews_for_a_full_term() -> None:
    """And says which leases live, which are gone and when it must come again."""
    clock = ManualClock(NOW)
    limiter = pinned(3, clock)
    kept, lost = lease_of(limiter.admit()), lease_of(limiter.admit())
    clock.advance(1_500)
    assert limiter.heartbeat([kept]).next_deadline == NOW + 3_500
    clock.advance(600)
    beat = limiter.heartbeat([kept, lost, "unknown", kept])
    assert beat.live_ids == [kept]
    assert beat.reclaimed_ids == [lost, "unknown"]
    assert beat.next_deadline == NOW + 4_100
    assert limiter.heartbeat([]).next_deadline == 0


def test_a_clock_that_goes_back_takes_no_lease_away() -> None:
    """A deadline once promised is kept."""
    clock = ManualClock(NOW)
    limiter = pinned(1, clock)
    held = lease_of(limiter.admit())
    clock.set(NOW - 10_000)
    assert limiter.heartbeat([held]).next_deadline == NOW + 2_000
    assert not limiter.admit().decision
    assert limiter.release(held)


def test_a_withdrawn_slot_teaches_nothing() -> None:
    """It is as if it had never been taken."""
    limiter = ConcurrencyLimiter(Aimd(1, 100, initial_limit=2), clock=ManualClock(NOW))
    for _ in range(10):
        assert limiter.withdraw(lease_of(limiter.admit()))
    assert limiter.limit == 2
    assert limiter.in_flight == 0


def test_the_guess_to_come_back_follows_what_requests_take() -> None:
    """The last round trip, or the next deadline if that is sooner."""
    clock = ManualClock(NOW)
    limiter = pinned(1, clock)
    lease = lease_of(limiter.admit())
    clock.advance(120)
    limiter.release(lease)
    limiter.admit()
    assert limiter.admit().decision.retry_after_ms == 120
    clock.advance(1_950)
    assert limiter.admit().decision.retry_after_ms == 50


def test_with_per_key_each_key_has_slots_of_its_own() -> None:
    """One key that is full does not stand in another's way."""
    limiter = pinned(1, per_key=True)
    first = lease_of(limiter.admit("a"))
    assert not limiter.admit("a").decision
    assert limiter.admit("b").decision
    limiter.release(first)
    assert limiter.admit("a").decision
    with pytest.raises(ConfigInvalidError, match="key must not be empty"):
        limiter.admit("")


def test_per_key_remembers_a_bounded_number_of_keys() -> None:
    """Idle keys make way, the longest idle first; busy ones do not."""
    limiter = pinned(1, per_key=True, max_keys=2)
    a = lease_of(limiter.admit("a"))
    limiter.admit("b")
    assert not limiter.admit("c").decision
    limiter.release(a)
    assert limiter.admit("c").decision
    assert not limiter.admit("b").decision


def test_limiters_that_share_a_store_share_their_slots() -> None:
    """As the processes of a fleet do, each with its own ceiling."""
    store = MemoryStore()
    one, other = pinned(1, store=store), pinned(3, store=store)
    held = lease_of(one.admit())
    assert not one.admit().decision
    assert other.admit().decision == Decision(True, 3, 1, NOW + 2_000, 0)
    assert other.release(held)
    assert one.in_flight == other.in_flight == 1


def test_ended_leases_leave_nothing_behind() -> None:
    """The store is empty again, and the limiter remembers deadlines of pools, not of leases."""
    limiter = pinned(1, lease_ttl_ms=3_600_000, per_key=True, max_keys=10)
    for number in range(1_000):
        limiter.release(lease_of(limiter.admit(f"k{number}")))
    assert isinstance(limiter.store, MemoryStore)
    assert len(limiter.store) == 0
    assert len(limiter._pools._due) < 100


def test_a_lease_id_says_where_its_slot_is() -> None:
    """So that whoever shares the store can give it back; one that was made up is unknown."""
    store = MemoryStore()
    one, other = (pinned(2, store=store, per_key=True, name="jobs") for _ in range(2))
    for key in ("a", "\u00e9" * 2_000, "x" * 127, "x" * 128, "x" * 129):
        held = lease_of(one.admit(key))
        assert len(held) <= 320
        assert other.heartbeat([held]).live_ids == [held]
        for made_up in (held[:-1], held + "A", held.replace("s", "s0", 1), held[:27], held.upper()):
            assert other.release(made_up) is False
        assert other.release(held)
        assert one.release(held) is False
    strange = pinned(2, store=store, per_key=True, name="other")
    assert strange.release(lease_of(one.admit("a"))) is False


def test_a_slot_without_a_deadline_is_of_one_process() -> None:
    """In a shared store it would be lost with the process."""

    class Shared(MemoryStore):
        answers_at_once = False

    with pytest.raises(UnsupportedError, match="deadline"), pinned(1, store=Shared()).slot():
        pass


steps = st.lists(
    st.tuples(st.sampled_from(("admit", "release", "beat", "wait")), st.integers(0, 3_000)),
    max_size=60,
)


@given(st.integers(1, 4), steps)
def test_slots_in_flight_are_those_of_live_leases(limit: int, plan: list[tuple[str, int]]) -> None:
    """Compared with a plain list of deadlines, over random lives of leases."""
    clock = ManualClock(NOW)
    limiter = pinned(limit, clock)
    model: dict[str, int] = {}
    for action, amount in plan:
        live = [held for held, deadline in model.items() if deadline > clock.now()]
        model = {held: model[held] for held in live}
        if action == "admit":
            grant = limiter.admit()
            assert bool(grant.decision) == (len(live) < limit)
            if grant.lease is not None:
                model[grant.lease.id] = clock.now() + 2_000
        elif action == "release" and model:
            chosen = sorted(model)[amount % len(model)]
            assert limiter.release(chosen)
            del model[chosen]
        elif action == "beat":
            assert set(limiter.heartbeat(list(model)).live_ids) == set(model)
            model = dict.fromkeys(model, clock.now() + 2_000)
        else:
            clock.advance(amount)
            limiter.sweep()
            model = {held: end for held, end in model.items() if end > clock.now()}
        assert limiter.in_flight == len(model)


def test_threads_never_exceed_the_ceiling() -> None:
    """Many threads, one counter, no more than four at a time."""
    limiter = pinned(4)
    lock, inside, worst = threading.Lock(), 0, 0
    gate = threading.Barrier(8)

    def work() -> None:
        nonlocal inside, worst
        gate.wait()
        for _ in range(200):
            grant = limiter.admit()
            if grant.lease is None:
                continue
            with lock:
                inside += 1
                worst = max(worst, inside)
            with lock:
                inside -= 1
            limiter.release(grant.lease.id)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst <= 4
    assert limiter.in_flight == 0


def _beat_s(count: int) -> float:
    """Processor time to renew so many leases of one pool, at best."""
    limiter = pinned(count)
    ids = [lease_of(limiter.admit()) for _ in range(count)]
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        beat = limiter.heartbeat(ids)
        best = min(best, time.process_time() - start)
        assert len(beat.live_ids) == count
    return best


def test_a_heartbeat_costs_as_much_as_there_is_to_renew() -> None:
    """Sixty times the leases, in a pool of sixty times the size, are not 3,600 times the work."""
    assert _beat_s(3_000) < 180 * _beat_s(50)
