"""`python -m bench.store_round_trips`: what a check costs on each store, counted and timed.

Round trips are counted by a proxy between the store and its real server: how often the client
spoke after the server had. SQLite has no server, so its statements are counted. Throughput is
measured as ratios within one run, in short alternating slices, since absolute figures say little
on a shared machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from penstock import Limiter, fixed_window, gcra, rate_limit
from penstock.core._steps import Step
from penstock.core._transform import checking
from penstock.stores import open_store
from penstock.stores.record import pack, unpack
from penstock.stores.sqlite import SqliteStore
from tests.servers import MissingError, Postgres, Valkey
from tests.stores import edge

from .turns import TurnCounter

__all__ = ["ENGINES", "main"]

Engine = Callable[[], AbstractContextManager[tuple[int, str]]]

_SPAN_MS = 864_000_000
_PLENTY = gcra(10_000, 1_000, burst=10**8)


@contextmanager
def _postgres() -> Iterator[tuple[int, str]]:
    with Postgres() as server:
        store: Any = open_store(server.url)
        store.init()
        store.close()
        yield server.port, server.url


@contextmanager
def _valkey() -> Iterator[tuple[int, str]]:
    with Valkey() as server:
        yield server.port, server.url


@contextmanager
def _edge(name: str) -> Iterator[tuple[int, str]]:
    with edge.make_server(name) as server:
        url = edge.url_of(name, server.port)
        edge.opened(url).close()
        yield server.port, url


# One line per store: starts the server; gives the port to listen in on, and the store's URL.
ENGINES: dict[str, Engine] = {
    "postgres": _postgres,
    "redis": _valkey,
    **{name: partial(_edge, name) for name in edge.ALL},
}


def _together(limiter: Limiter, *keys: str) -> bool:
    """The keys as one decision, by the limiter's strategy."""
    steps = [Step(key, checking(limiter.strategy)) for key in keys]
    return all(limiter.store.apply_all(steps, time.time_ns() // 1_000_000))


_SITUATIONS: dict[str, Callable[[Limiter, Limiter], Any]] = {
    "a new key": lambda ours, _: ours.check("new"),
    "a known key": lambda ours, _: ours.check("known"),
    "a denial": lambda ours, _: ours.check("spent"),
    "a peek": lambda ours, _: ours.peek("known"),
    "changed elsewhere": lambda ours, theirs: ours.check("shared"),
    "100 new keys": lambda ours, _: ours.check_many([f"k{n}" for n in range(100)]),
    "3 new as one": lambda ours, _: _together(ours, "new a", "new b", "new c"),
    "3 known as one": lambda ours, _: _together(ours, "new a", "new b", "new c"),
    "3, one spent": lambda ours, _: _together(ours, "new a", "spent", "new c"),
    "3, one changed": lambda ours, _: _together(ours, "new a", "new b", "shared too"),
}


def _count(engine: Engine) -> dict[str, int]:
    """Round trips per situation."""
    counts: dict[str, int] = {}
    with engine() as (port, url), TurnCounter(port) as counter:
        stores = [open_store(where, timeout_ms=10_000) for where in (counter.url_of(url), url)]
        ours, theirs = (rate_limit(fixed_window(5, _SPAN_MS, "first"), store=s) for s in stores)
        for limiter in (ours, theirs):
            limiter.check("warm")
            limiter.peek("warm")
        ours.check("known")
        ours.check("spent", 5)
        for key in ("shared", "shared too"):
            ours.check(key)
            theirs.check(key)
        ours.check_many(["warm", "known"])
        _together(ours, "warm", "known")
        for name, ask in _SITUATIONS.items():
            before = counter.turns
            ask(ours, theirs)
            counts[name] = counter.turns - before
        for store in stores:
            store.close()
    return counts


def _count_statements() -> dict[str, int]:
    """The same for SQLite: statements, as its own trace reports them."""
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "limits.db")
        limiter = rate_limit(fixed_window(5, _SPAN_MS, "first"), store=store)
        limiter.check("known")
        limiter.check("spent", 5)
        limiter.check_many(["shared", "shared too"])
        seen: list[str] = []
        connection = store._database._connection
        assert connection is not None
        connection.set_trace_callback(seen.append)
        for name, ask in _SITUATIONS.items():
            seen.clear()
            ask(limiter, limiter)
            counts[name] = len(seen)
        store.close()
    return counts


def _rate(callers: int, seconds: float, ask: Callable[[str], Any]) -> float:
    """Checks a second from so many threads, over 500 keys."""
    totals: list[int] = []

    def call(number: int) -> None:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            ask(f"k{(done * 7 + number) % 500}")
            done += 1
        totals.append(done)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(totals) / seconds


class _Plain:
    """The sequence that PostgresStore is compared with: begin, lock, select, upsert, commit."""

    def __init__(self, url: str, connections: int) -> None:
        from psycopg_pool import ConnectionPool

        settings = {"autocommit": True, "prepare_threshold": 0}
        self._pool = ConnectionPool(
            url, min_size=connections, max_size=connections, kwargs=settings, open=True
        )
        self._pool.wait()
        with self._pool.connection() as connection:
            connection.execute(
                "CREATE TABLE plain (key text PRIMARY KEY, record text NOT NULL, keep bigint)"
            )
        self._check = checking(_PLENTY)

    def check(self, key: str) -> None:
        now = time.time_ns() // 1_000_000
        with self._pool.connection() as connection:
            run = connection.execute
            run("BEGIN")
            run("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (key,))
            row = run("SELECT record FROM plain WHERE key = %s", (key,)).fetchone()
            state = unpack(row[0] if row else None, key, self._check.kind, now)
            outcome = self._check.run(state, now, 1)
            record = pack(self._check.kind, outcome.state, now + outcome.ttl_ms)
            run(
                "INSERT INTO plain VALUES (%s, %s, %s) ON CONFLICT (key) DO UPDATE "
                "SET record = excluded.record, keep = excluded.keep",
                (key, record, now + outcome.ttl_ms),
            )
            run("COMMIT")

    def touch(self, key: str) -> None:
        """One committed write and nothing else: what no durable check can be cheaper than."""
        with self._pool.connection() as connection:
            connection.execute("UPDATE plain SET keep = keep + 1 WHERE key = %s", (key,))

    def close(self) -> None:
        self._pool.close()


def _race_postgres(rounds: int, seconds: float, *, durable: bool) -> None:
    disk = "fsync on" if durable else "fsync off"
    with Postgres(durable=durable) as server:
        store: Any = open_store(server.url, timeout_ms=10_000)
        store.init()
        limiter = rate_limit(_PLENTY, store=store)
        plain = _Plain(server.url, connections=8)
        for callers in (1, 8, 32):
            contenders = (plain.check, plain.touch, limiter.check)
            rates = [[_rate(callers, seconds, ask) for ask in contenders] for _ in range(rounds)]
            before, floor, after = (statistics.median(c) for c in zip(*rates, strict=True))
            ratio = statistics.median(ours / theirs for theirs, _, ours in rates)
            figures = f"{before:7,.0f} plain, {floor:7,.0f} one update, {after:7,.0f} store"
            print(f"  {disk}, {callers:2} threads: {figures}, {ratio:5.2f} x plain")
        plain.close()
        store.close()


def _race_together(where: str, store: Any, rounds: int, seconds: float) -> None:
    """Three keys as one decision, beside a check of one and beside three checks."""
    limiter = rate_limit(_PLENTY, store=store)
    check = checking(_PLENTY)

    def keys_of(key: str) -> tuple[str, str, str]:
        return f"user {key}", f"tenant {key[:2]}", f"plan {key[:1]}"

    def as_one(key: str) -> None:
        store.apply_all([Step(k, check) for k in keys_of(key)], time.time_ns() // 1_000_000)

    def one_by_one(key: str) -> None:
        for k in keys_of(key):
            limiter.check(k)

    for callers in (1, 8):
        contenders = (limiter.check, as_one, one_by_one)
        rates = [[_rate(callers, seconds, ask) for ask in contenders] for _ in range(rounds)]
        single, whole, apart = (statistics.median(c) for c in zip(*rates, strict=True))
        cost = statistics.median(one / three for one, three, _ in rates)
        figures = (
            f"{single:7,.0f} of one key, {whole:7,.0f} of three, {apart:7,.0f} three times one"
        )
        print(f"  {where}, {callers} threads: {figures}; three as one cost {cost:4.2f} x one")


def _race_all_together(rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        store: Any = SqliteStore(Path(folder) / "limits.db", timeout_ms=30_000)
        _race_together("sqlite", store, rounds, seconds)
        store.close()
    for durable in (False, True):
        with Postgres(durable=durable) as server:
            store = open_store(server.url, timeout_ms=10_000)
            store.init()
            where = f"postgres, fsync {'on' if durable else 'off'}"
            _race_together(where, store, rounds, seconds)
            store.close()


def _race_sqlite(rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        stores = {
            mode: SqliteStore(Path(folder) / f"{mode}.db", synchronous=mode, timeout_ms=30_000)
            for mode in ("normal", "off", "full")
        }
        limiters = {mode: rate_limit(_PLENTY, store=store) for mode, store in stores.items()}
        for callers in (1, 8):
            for mode, limiter in limiters.items():
                rates = [_rate(callers, seconds, limiter.check) for _ in range(rounds)]
                rate = statistics.median(rates)
                print(f"  synchronous={mode:6}, {callers} threads: {rate:8,.0f}")
        for store in stores.values():
            store.close()


def _print_counts() -> None:
    print("round trips per call, counted (for sqlite: statements)")
    print("  " + "".join(f"{name:>19}" for name in ("", *_SITUATIONS)))
    _print_row("sqlite", _count_statements())
    for name, engine in ENGINES.items():
        try:
            counts = _count(engine)
        except MissingError as missing:  # noqa: PERF203 - one server after the other
            print(f"  {name:>19}  {missing}")
        else:
            _print_row(name, counts)


def _hammer(url: str, is_over: Any) -> None:
    """Check one key without a pause; the program of another process."""
    limiter = rate_limit(_PLENTY, store=open_store(url, timeout_ms=10_000))
    while not is_over.is_set():
        limiter.check("hot")


def _count_contended(engine: Engine, others: int, checks: int = 400) -> Counter[int]:
    """Round trips of checks on a key that other processes keep changing: how many took how many."""
    spawn = multiprocessing.get_context("spawn")
    with engine() as (port, url), TurnCounter(port) as counter:
        is_over = spawn.Event()
        crowd = [spawn.Process(target=_hammer, args=(url, is_over)) for _ in range(others)]
        for process in crowd:
            process.start()
        store: Any = open_store(counter.url_of(url), timeout_ms=10_000)
        limiter = rate_limit(_PLENTY, store=store)
        while limiter.peek("hot").remaining == _PLENTY.limit:
            time.sleep(0.1)
        # The others have started one after the other.
        time.sleep(2)
        counts: Counter[int] = Counter()
        for _ in range(checks):
            before = counter.turns
            limiter.check("hot")
            counts[counter.turns - before] += 1
        is_over.set()
        for process in crowd:
            process.join()
        store.close()
    return counts


def _print_contended() -> None:
    print("\npostgres, round trips of a check on a key that other processes check without a pause")
    for others in (1, 3):
        counts = sorted(_count_contended(ENGINES["postgres"], others).items())
        print(f"  {others} others: " + ", ".join(f"{n} in {trips}" for trips, n in counts))


def _print_row(name: str, counts: dict[str, int]) -> None:
    print(f"  {name:>19}" + "".join(f"{count:>19}" for count in counts.values()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.store_round_trips", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="slices per figure (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each slice (%(default)s)")
    options = parser.parse_args()
    _print_counts()
    _print_contended()
    print("\nseveral keys as one decision, requests a second")
    _race_all_together(options.rounds, options.seconds)
    print("\nsqlite on this disk, checks a second")
    _race_sqlite(options.rounds, options.seconds)
    print("\npostgres on loopback, checks a second; plain: begin, lock, select, upsert, commit;")
    print("one update: a committed write by key that decides nothing")
    for durable in (False, True):
        _race_postgres(options.rounds, options.seconds, durable=durable)


if __name__ == "__main__":
    main()
