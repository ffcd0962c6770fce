"""An interrupt at every place of the waiting code, as leader and as follower, in each of its users.
Where places are bytecodes, one in three is struck, so that hardly a line is left out; in a long
run, each.

Each scenario has a crowd around the caller that is struck, and looks at what is left: those beside
it are served, so is the next caller in the same thread and in another one, soon; and what was
charged is what they were told, but for the interrupted call and for those told of a doubt.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Decision, ManualClock, StoreUnavailableError, fixed_window, gcra, rate_limit
from penstock._queueing import Mutex
from penstock.leasing import TwoTierLimiter, two_tier
from penstock.stores.postgres import PostgresStore
from penstock.stores.sqlite import SqliteStore
from tests.core.waiters import waiting as callers_of
from tests.leasing.crowds import queued
from tests.leasing.far import FarStore
from tests.stores.cas.backend import DictCasStore
from tests.stores.postgres.live import new_table, running, url_of
from tests.support.helpers import NOW, Quota
from tests.support.interrupts import Interrupt, SoftTimeoutError, Strike, strike_everywhere

PLENTY = 10**6
SOON_S = 5.0
"""Far less than the time that the stores here give a call."""
PATIENT_MS = 60_000
SPAN_MS = 10**9

each_kind = pytest.mark.parametrize("error", [Interrupt, SoftTimeoutError])
each_role = pytest.mark.parametrize("role", ["leader", "follower"])


@pytest.fixture(autouse=True)
def _swept() -> Iterator[None]:
    """A connection that was struck while it was being made is closed by nobody, and the next test
    is not to blame for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "somebody was left waiting"
        time.sleep(0.0002)


class Hooked(Quota):
    """Calls `hook` in the middle of its next check: whoever decides is leading, and leads alone."""

    name = "hooked"

    def __init__(self) -> None:
        super().__init__(PLENTY, SPAN_MS)
        self.hook: Callable[[], Any] | None = None
        self.overlaps = 0
        self._leaders: list[int] = []

    def check(self, state: Any, now: int, cost: int) -> Any:
        self._leaders.append(threading.get_ident())
        try:
            hook, self.hook = self.hook, None
            (hook or _let_others_run)()
            self.overlaps += len(self._leaders) > 1
        finally:
            self._leaders.pop()
        return super().check(state, now, cost)


def _let_others_run() -> None:
    time.sleep(0.0005)


class Crowd:
    """Callers in threads of their own, and what they were told."""

    def __init__(self, call: Callable[[], Decision]) -> None:
        self._call = call
        self._threads: list[threading.Thread] = []
        self.admitted = 0
        self.in_doubt = 0
        self.errors: list[BaseException] = []

    def call(self) -> None:
        """In this thread, and nothing is caught."""
        assert self._call().allowed
        self.admitted += 1

    def join(self, count: int = 1) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._note, daemon=True)
            self._threads.append(thread)
            thread.start()

    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _note(self) -> None:
        try:
            self.call()
        except StoreUnavailableError as error:
            if "may have been charged" in str(error):
                self.in_doubt += 1
            else:
                self.errors.append(error)
        except BaseException as error:
            self.errors.append(error)


def pending(store: SqliteStore | PostgresStore) -> int:
    """How many calls are in the queue of a store, which nothing public tells."""
    queue: Any = store._commit if isinstance(store, SqliteStore) else store._sync._queue  # type: ignore[union-attr]
    count: int = queue.pending
    return count


class StoreWorld:
    """A store whose callers wait for each other, with a key of its own for each scenario."""

    def __init__(self, store: Any, waiting: Callable[[str], int], *, reopens: bool = False) -> None:
        self.store = store
        self.strategy = Hooked()
        self.limiter = rate_limit(self.strategy, store=store, clock=ManualClock(NOW))
        self._waiting = waiting
        self._reopens = reopens
        self._names = map("k{}".format, itertools.count())

    def strike(
        self, parts: tuple[str, ...], role: str, error: Any = Interrupt, **options: Any
    ) -> None:
        """Everywhere; then the store still closes."""
        play = {"leader": self._lead, "follower": self._follow, "last": self._come_last}[role]
        strike_everywhere(parts, lambda strike: self._play(play, strike), error, **options)
        self.store.close()

    def _play(self, play: Callable[[Strike, Crowd, str], bool], strike: Strike) -> None:
        key = next(self._names)
        if self._reopens:
            self.store.close()
        crowd = Crowd(lambda: self.limiter.check(key))
        interrupted = play(strike, crowd, key)
        self.strategy.hook = None
        crowd.call()
        crowd.join()
        until(crowd.are_done)
        assert crowd.errors == []
        assert self.strategy.overlaps == 0, "two led at once"
        spent = PLENTY - self.limiter.peek(key).remaining
        assert crowd.admitted <= spent <= crowd.admitted + crowd.in_doubt + interrupted

    def _lead(self, strike: Strike, crowd: Crowd, key: str) -> bool:
        """Two others come while it decides."""

        def arrive() -> None:
            crowd.join(2)
            until(lambda: self._waiting(key) >= 2)

        self.strategy.hook = arrive
        return strike(crowd.call)

    def _follow(self, strike: Strike, crowd: Crowd, key: str) -> bool:
        """Another one decides while it comes to wait, and two more come behind it: it has to lead
        for all three, if it gets there, while others come."""
        entered, go = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            go.wait(SOON_S)

        self.strategy.hook = hold
        crowd.join()
        assert entered.wait(SOON_S)

        def release() -> None:
            until(lambda: self._waiting(key) or is_over.is_set())
            crowd.join(2)
            until(lambda: self._waiting(key) >= 2)
            self.strategy.hook = lambda: crowd.join(2)
            go.set()

        is_over = threading.Event()
        helper = threading.Thread(target=release, daemon=True)
        helper.start()
        interrupted = strike(crowd.call)
        is_over.set()
        helper.join(SOON_S)
        return interrupted

    def _come_last(self, strike: Strike, crowd: Crowd, key: str) -> bool:
        """Another one decides, two wait, and then it comes."""
        entered, go = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            go.wait(SOON_S)

        self.strategy.hook = hold
        crowd.join()
        assert entered.wait(SOON_S)
        crowd.join(2)
        until(lambda: self._waiting(key) == 2)
        threading.Timer(0.004, go.set).start()
        interrupted = strike(crowd.call)
        go.set()
        return interrupted


@each_kind
@each_role
def test_sqlite_outlives_an_interrupt_anywhere(tmp_path: Path, role: str, error: Any) -> None:
    """At every bytecode: no turn is lost, no transaction stays open, nobody else fails."""
    store = SqliteStore(tmp_path / "limits.db", synchronous="off", timeout_ms=PATIENT_MS)
    world = StoreWorld(store, lambda _key: pending(store))
    parts = ("_queueing", "stores/sqlite", "stores/_sheet")
    world.strike(parts, role, error, least=800, by_opcode=True, one_in=3)


def test_sqlite_outlives_an_interrupt_while_it_opens_the_file(tmp_path: Path) -> None:
    """A connection that is being set up may hold the lock; it is not left behind."""
    store = SqliteStore(tmp_path / "limits.db", synchronous="off", timeout_ms=PATIENT_MS)
    world = StoreWorld(store, lambda _key: pending(store), reopens=True)
    world.strike(("stores/sqlite/_database",), "leader", least=100, by_opcode=True, one_in=3)


@each_role
def test_postgres_outlives_an_interrupt_anywhere(role: str) -> None:
    """Also with a reply unread: that connection is not used again."""
    store: Any = PostgresStore.from_url(url_of(new_table(), timeout_ms=PATIENT_MS))
    world = StoreWorld(store, lambda _key: pending(store))
    world.strike(("_queueing", "stores/postgres", "stores/_sheet"), role, least=150)


def test_postgres_outlives_an_interrupt_while_it_connects() -> None:
    """Those who wait for the connection get theirs."""
    store: Any = PostgresStore.from_url(url_of(new_table(), timeout_ms=PATIENT_MS))
    world = StoreWorld(store, lambda _key: pending(store), reopens=True)
    world.strike(("stores/postgres/_connections",), "leader", least=80, by_opcode=True, one_in=3)


def test_a_pool_gets_its_connections_back_after_an_interrupt_anywhere() -> None:
    """None of them is lost, although one is lent whenever an interrupt strikes."""
    from psycopg_pool import ConnectionPool

    with ConnectionPool(running().url, min_size=2, max_size=2, open=True) as pool:
        pool.wait()
        store: Any = PostgresStore(pool, table=new_table(), timeout_ms=PATIENT_MS)
        world = StoreWorld(store, lambda _key: pending(store))
        parts = ("stores/postgres/_connections", "stores/postgres/_commits")
        world.strike(parts, "leader", least=200, by_opcode=True, one_in=3)
        with pool.connection(timeout=SOON_S), pool.connection(timeout=SOON_S):
            pass


@pytest.mark.parametrize("role", ["leader", "follower", "last"])
def test_compare_and_swap_outlives_an_interrupt_anywhere(role: str) -> None:
    """Whoever came last leads: also for those whose calls were taken and not written yet."""
    store = DictCasStore(timeout_ms=PATIENT_MS)

    def waiting(key: str) -> int:
        queue = store.queues.get(key)
        return 0 if queue is None else queue.pending

    world = StoreWorld(store, waiting)
    world.strike(("_queueing", "stores/cas", "stores/_sheet"), role, least=200)


@each_role
def test_acquire_outlives_an_interrupt_anywhere(role: str) -> None:
    """Whoever waits for the key is admitted in turn, and so is the next who comes."""
    clock = ManualClock(NOW)
    limiter = rate_limit(gcra(1, 1_000), clock=clock)
    names = map("k{}".format, itertools.count())

    def scenario(strike: Strike) -> None:
        key = next(names)
        assert limiter.check(key).allowed
        crowd = Crowd(lambda: limiter.acquire(key))
        if role == "follower":
            crowd.join()
            until(lambda: callers_of(limiter) == 1)
        over = threading.Event()

        def pass_time() -> None:
            time.sleep(0.002)
            crowd.join()
            while not over.is_set():
                clock.advance(500)
                time.sleep(0.0003)

        time_passes = threading.Thread(target=pass_time, daemon=True)
        time_passes.start()
        strike(crowd.call)
        crowd.join()
        until(crowd.are_done)
        crowd.call()
        over.set()
        time_passes.join(SOON_S)
        assert crowd.errors == []

    parts = ("_queueing", "core/_waiting", "core/_limiter", "core/_flow")
    strike_everywhere(parts, scenario, least=400, by_opcode=True, one_in=3)


class HookedFar(FarStore):
    """A far tier that calls `hook` while it is asked: whoever asks is leading."""

    hook: Callable[[], Any] | None = None

    def apply(self, key: str, transform: Any, now: int, cost: int) -> Any:
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return super().apply(key, transform, now, cost)


@each_role
def test_a_lease_outlives_an_interrupt_anywhere(role: str) -> None:
    """The next who misses leases; no credit is spent that was not granted."""
    far = HookedFar()
    limiter: Any = two_tier(fixed_window(PLENTY, SPAN_MS), far, batch=2, clock=far.clock)
    assert isinstance(limiter, TwoTierLimiter)
    names = map("k{}".format, itertools.count())

    def lead(strike: Strike, crowd: Crowd, key: str) -> None:
        def arrive() -> None:
            crowd.join(2)
            until(lambda: queued(limiter, key) >= 3)

        far.hook = arrive
        strike(crowd.call)

    def follow(strike: Strike, crowd: Crowd, key: str) -> None:
        entered, go = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            go.wait(SOON_S)

        far.hook = hold
        crowd.join()
        assert entered.wait(SOON_S)
        threading.Timer(0.003, go.set).start()
        strike(crowd.call)
        go.set()

    def scenario(strike: Strike) -> None:
        key = next(names)
        crowd = Crowd(lambda: limiter.check(key))
        (lead if role == "leader" else follow)(strike, crowd, key)
        far.hook = None
        crowd.call()
        crowd.join()
        until(crowd.are_done)
        assert crowd.errors == []
        granted = sum(grant.capacity for name, grant in far.grants if name == key)
        assert crowd.admitted + limiter._near.held(key) <= granted
        far.grants.clear()

    parts = ("_queueing", "leasing/_refilling", "leasing/_near")
    strike_everywhere(parts, scenario, least=300, by_opcode=True, one_in=3)
    limiter.close()


def test_a_mutex_outlives_an_interrupt_anywhere() -> None:
    """At every bytecode, also while it is waited for."""
    mutex = Mutex()
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        with mutex.hold():
            inside += 1
            most = max(most, inside)
            inside -= 1

    def scenario(strike: Strike) -> None:
        nonlocal inside
        entered, go = threading.Event(), threading.Event()

        def hold() -> None:
            with mutex.hold():
                entered.set()
                go.wait(SOON_S)

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        assert entered.wait(SOON_S)
        threading.Timer(0.002, go.set).start()
        strike(work)
        inside = 0
        go.set()
        holder.join(SOON_S)
        work()
        other = threading.Thread(target=work, daemon=True)
        other.start()
        other.join(SOON_S)
        assert not other.is_alive()

    strike_everywhere(("_queueing",), scenario, least=150, by_opcode=True, one_in=3)
    assert most == 1
