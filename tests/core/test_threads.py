"""Exactly the limit, however many ask at once and however often they change places."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import (
    ManualClock,
    Strategy,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from tests.support.helpers import NOW, PATHS, Quota, frantic_switching, make_limiter, make_store

THREADS, LIMIT, TRIALS = 16, 50, 100

STRATEGIES: dict[str, Strategy] = {
    "gcra": gcra(LIMIT, 60_000),
    "token_bucket": token_bucket(LIMIT, 1),
    "fixed_window": fixed_window(LIMIT, 60_000),
    "fixed_window_first": fixed_window(LIMIT, 60_000, anchor="first"),
    "sliding_window": sliding_window(LIMIT, 60_000),
    "sliding_window_log": sliding_window_log(LIMIT, 60_000),
    "custom": Quota(LIMIT),
}


@pytest.fixture(scope="module", autouse=True)
def _switch_often() -> Iterator[None]:
    """Threads change places as often as the interpreter can."""
    with frantic_switching():
        yield


@pytest.fixture(scope="module")
def crowd() -> Iterator[Callable[[Callable[[int], int]], list[int]]]:
    """Runs one function on all threads at once and returns what each made."""
    gate = threading.Barrier(THREADS)

    def start(work: Callable[[int], int], number: int) -> int:
        gate.wait(30)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        yield lambda work: list(pool.map(lambda number: start(work, number), range(THREADS)))


Crowd = Callable[[Callable[[int], int]], list[int]]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_crowd_at_one_key_gets_exactly_the_limit(name: str, path: str, crowd: Crowd) -> None:
    """16 threads, a limit of 50, 100 trials: 50 admitted, every time."""
    limiter = make_limiter(path, STRATEGIES[name], ManualClock(NOW))
    for trial in range(TRIALS):
        key = f"trial {trial}"
        admitted = crowd(lambda _, key=key: sum(limiter.check(key).allowed for _ in range(5)))
        assert sum(admitted) == LIMIT


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["gcra", "sliding_window_log", "custom"])
def test_sync_and_async_calls_draw_on_one_limit(name: str, path: str, crowd: Crowd) -> None:
    """Half of the crowd calls and half of it awaits: together, exactly the limit."""
    limiter = make_limiter(path, STRATEGIES[name], ManualClock(NOW))

    def work(number: int, key: str) -> int:
        if number % 2:
            return sum(limiter.check(key).allowed for _ in range(5))

        async def ask() -> int:
            return sum([(await limiter.acheck(key)).allowed for _ in range(5)])

        return asyncio.run(ask())

    for trial in range(10):
        assert sum(crowd(lambda number, trial=trial: work(number, str(trial)))) == LIMIT


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_batches_and_large_costs_keep_to_the_limit(name: str, path: str, crowd: Crowd) -> None:
    """check_many and costs of up to 7 at once never overspend a key by a unit."""
    limiter = make_limiter(path, STRATEGIES[name], ManualClock(NOW))
    for trial in range(10):
        keys = [f"{trial}/{number}" for number in range(3)]

        def work(number: int, keys: list[str] = keys) -> int:
            cost = 1 + number % 7
            decisions = [d for _ in range(8) for d in limiter.check_many(keys, cost)]
            return cost * sum(d.allowed for d in decisions)

        spent = sum(crowd(work))
        assert spent <= 3 * LIMIT
        left = [limiter.peek(key).remaining for key in keys]
        assert spent + sum(left) == 3 * LIMIT


@pytest.mark.parametrize("path", PATHS)
def test_keys_do_not_disturb_each_other(path: str, crowd: Crowd) -> None:
    """Each thread hammers keys of its own while the table grows under all of them."""
    limiter = make_limiter(path, fixed_window(2, 60_000), ManualClock(NOW))

    def work(number: int) -> int:
        return sum(limiter.check(f"{number}/{at % 150}").allowed for at in range(450))

    assert crowd(work) == [300] * THREADS
    assert len(limiter.store) == 150 * THREADS  # type: ignore[arg-type]


@pytest.mark.parametrize("path", PATHS)
def test_sweeps_resets_and_expiry_go_on_beside_checks(path: str, crowd: Crowd) -> None:
    """A store that is swept, reset, measured and filled at once stays whole."""
    clock = ManualClock(NOW)
    store = make_store(path)
    limiter = make_limiter(path, sliding_window_log(3, 50), clock, store)
    custom = make_limiter(path, Quota(3, 50), clock, store, prefix="custom")

    def work(number: int) -> int:
        for step in range(150):
            key = str(step * 7 % 60 + number % 3)
            if number == 0:
                clock.advance(1)
            elif number == 1:
                store.sweep(clock.now())
            elif number == 2:
                limiter.reset(key)
            elif number == 3:
                assert len(store) >= 0
            else:
                assert limiter.check(key).remaining >= 0
                assert custom.check(key).remaining >= 0
        return 0

    crowd(work)
    clock.advance(10_000)
    store.sweep(clock.now())
    assert len(store) == 0


@pytest.mark.parametrize("path", PATHS)
def test_a_bounded_store_never_overflows(path: str, crowd: Crowd) -> None:
    """However many newcomers arrive at once, `max_keys` holds."""
    for overflow in ("evict", "deny"):
        store = make_store(path, 40, overflow)
        limiter = make_limiter(path, gcra(1, 60_000), ManualClock(NOW), store)
        crowd(lambda number: sum(limiter.check(f"{number}/{at}").allowed for at in range(100)))  # noqa: B023
        assert len(store) == 40
