"""Clocks: read once per call, steady, moved by hand, or one's own."""

from __future__ import annotations

import time

import pytest

from penstock import ManualClock, SystemClock, fixed_window, gcra
from tests.support.helpers import NOW, CountingClock, Quota, awaited, both_paths, make_limiter, run


@both_paths
def test_the_clock_is_read_exactly_once_per_call(path: str) -> None:
    """However many keys."""
    for strategy in (gcra(100, 1_000), Quota(100)):
        clock = CountingClock()
        limiter = make_limiter(path, strategy, clock)
        keys = [str(number) for number in range(50)]
        calls = [
            (lambda: limiter.check("k"), 1),  # noqa: B023
            (lambda: limiter.check_many(keys), 1),  # noqa: B023
            (lambda: limiter.check_many([]), 1),  # noqa: B023
            (lambda: limiter.peek("k"), 1),  # noqa: B023
            (lambda: limiter.reset("k"), 1),  # noqa: B023
            (lambda: run(awaited(limiter.acheck, "k")), 1),  # noqa: B023
            (lambda: run(awaited(limiter.acheck_many, keys)), 1),  # noqa: B023
            (lambda: run(awaited(limiter.apeek, "k")), 1),  # noqa: B023
            (lambda: run(awaited(limiter.areset, "k")), 1),  # noqa: B023
        ]
        for call, reads in calls:
            clock.reads = 0
            call()
            assert clock.reads == reads


@both_paths
def test_a_clock_is_anything_that_tells_the_time(path: str) -> None:
    """A class with `now()`, obeyed on both paths, also when it goes back."""

    class Scripted:
        def __init__(self, *instants: int) -> None:
            self.instants = list(instants)

        def now(self) -> int:
            return self.instants.pop(0)

    clock = Scripted(NOW, NOW + 999, NOW - 5, NOW + 1_000)
    limiter = make_limiter(path, fixed_window(1, 1_000), clock)
    assert [limiter.check("k").allowed for _ in range(4)] == [True, False, False, True]


def test_the_system_clock_tells_epoch_time_and_never_goes_back() -> None:
    """Near the wall clock, in whole ms, the same for all instances."""
    clock = SystemClock()
    readings = [clock.now() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert all(type(reading) is int for reading in readings)
    assert abs(readings[-1] - time.time() * 1000) < 60_000
    assert 0 <= SystemClock().now() - readings[-1] < 1_000


def test_a_step_of_the_system_time_does_not_move_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is read once, at import, and never again."""
    before = SystemClock().now()
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, lambda: 0)
    assert 0 <= SystemClock().now() - before < 10_000


@both_paths
def test_both_paths_read_the_same_steady_clock(path: str) -> None:
    """The compiled gate's own reading lies between two of SystemClock's."""
    limiter = make_limiter(path, fixed_window(1_000, 60_000, anchor="first"))
    for number in range(200):
        before = SystemClock().now()
        now = limiter.check(str(number)).reset_at - 60_000
        assert before <= now <= SystemClock().now()


def test_a_manual_clock_moves_only_when_told() -> None:
    """Forward by advance, anywhere by set; it starts at 0 unless told otherwise."""
    clock = ManualClock()
    assert clock.now() == 0
    clock.advance(5)
    clock.advance(0)
    assert clock.now() == 5
    clock.set(NOW)
    clock.set(NOW - 1)
    assert clock.now() == NOW - 1
    assert repr(clock) == f"ManualClock({NOW - 1})"


def test_a_manual_clock_tells_its_listeners_until_they_leave() -> None:
    """After the move, so that they see where it stands."""
    clock, seen = ManualClock(NOW), []
    leave = clock.subscribe(lambda: seen.append(clock.now()))
    clock.advance(1)
    clock.set(NOW)
    leave()
    leave()
    clock.advance(9)
    assert seen == [NOW + 1, NOW]
