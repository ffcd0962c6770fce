"""What goes to another process: limiters and stores as what they were made from, or a clear no."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Limiter,
    ManualClock,
    MemoryStore,
    PenstockError,
    Store,
    SystemClock,
    Transform,
    UnsupportedError,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
    token_bucket,
    unlimited,
)
from penstock.concurrency import ConcurrencyLimiter
from penstock.core._transform import checking
from penstock.leasing import AdaptiveBatch, two_tier
from penstock.stores import open_store
from penstock.stores.redis import RedisStore
from penstock.stores.sqlite import SqliteStore

DAY_MS = 86_400_000
STRATEGIES = [
    "10/day",
    gcra(10, DAY_MS, 5),
    token_bucket(10, 0.0001),
    fixed_window(10, DAY_MS, "first"),
    sliding_window(10, DAY_MS, 3),
    sliding_window_log(10, DAY_MS),
    unlimited(),
]


def again(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_limiter_on_a_store_from_a_url_is_pickled_as_what_it_was_made_from(
    strategy: Any, tmp_path: Path
) -> None:
    """With its prefix and the options of its store; the two count together."""
    store = open_store(f"sqlite:///{tmp_path}/limits.db?timeout_ms=9000")
    limiter = rate_limit(strategy, store=store, prefix="api")
    other = again(limiter)
    assert type(other) is type(limiter)
    assert repr(other.strategy) == repr(limiter.strategy)
    assert (other.prefix, other.store.timeout_ms) == ("api", 9_000)
    limiter.check("k")
    if limiter.strategy.limit < 1_000:
        assert other.check("k").remaining == limiter.strategy.limit - 2
    third = again(other)
    assert third.peek("k").remaining == limiter.peek("k").remaining
    for one in (limiter, other, third):
        one.store.close()


@pytest.mark.parametrize("strategy", STRATEGIES[1:], ids=str)
def test_a_strategy_is_pickled_by_its_parameters(strategy: Any) -> None:
    """Its scripts are those of whoever loads it."""
    scripts = checking(strategy).lua
    data = pickle.dumps(strategy)
    assert len(data) < 600
    other = pickle.loads(data)
    assert repr(other) == repr(strategy)
    assert other.check(None, 10**12, 3) == strategy.check(None, 10**12, 3)
    assert (other.lua is None) == (scripts is None)
    if scripts is not None:
        assert other.lua.check is scripts.check
        assert other.lua.argv(5, 6) == scripts.argv(5, 6)


def spend(limiter: Limiter, tries: int, admitted: Any) -> None:
    admitted.put(sum(limiter.check("k").allowed for _ in range(tries)))


def test_processes_that_are_given_one_limiter_hold_one_limit(tmp_path: Path) -> None:
    """Spawned, so that nothing is inherited."""
    store = open_store(f"sqlite:///{tmp_path}/limits.db", timeout_ms=20_000)
    limiter = rate_limit(fixed_window(50, 3_600_000, "first"), store=store)
    spawn = multiprocessing.get_context("spawn")
    admitted = spawn.Queue()
    others = [spawn.Process(target=spend, args=(limiter, 40, admitted)) for _ in range(2)]
    for process in others:
        process.start()
    spend(limiter, 5, admitted)
    for process in others:
        process.join(60)
    assert sum(admitted.get(timeout=10) for _ in range(3)) == 50
    store.close()


def test_what_is_pickled_together_stays_together() -> None:
    """Two limiters on one store share one store there, too."""
    store = open_store("memory://?max_keys=5&overflow=deny", max_bytes=10_000)
    pair = [rate_limit(f"{n}/minute", store=store, prefix=f"p{n}") for n in (5, 9)]
    one, other = again(pair)
    assert one.store is other.store
    assert repr(one.store) == repr(store)
    assert one.check("k").remaining == 4


def test_a_store_in_memory_is_opened_anew() -> None:
    """Its URL says what it is, not what it holds."""
    limiter = rate_limit("5/minute", store=open_store("memory://"))
    limiter.check("k")
    assert again(limiter).check("k").remaining == 4
    assert copy.deepcopy(limiter).check("k").remaining == 4
    assert limiter.check("k").remaining == 3


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://user:secret@localhost:1/3?timeout_ms=70", {"use_server_time": False}),
        ("redis+cluster://localhost:1,localhost:2", {}),
        ("sqlite:////tmp/somewhere.db", {"timeout_ms": 90}),
        ("postgresql://user:secret@localhost:1/db?table=limits", {"timeout_ms": 90}),
        ("dynamodb://table?region=eu-west-1", {}),
        ("d1://account/database", {"token": "secret"}),
        ("workers-kv://account/namespace", {"token": "secret"}),
        ("durable-object+https://example.org/x", {"token": "secret"}),
        ("deno-kv+https://example.org/x", {"token": "secret"}),
        ("memory://?max_keys=3", {"overflow": "deny"}),
    ],
)
def test_every_store_that_a_url_opens_is_opened_again_from_it(
    url: str, options: dict[str, Any]
) -> None:
    """Without being connected; no text shows what it was opened from."""
    store = open_store(url, **options)
    other = again(store)
    assert type(other) is type(store)
    assert repr(other) == repr(store)
    assert "secret" not in f"{other!r} {vars(other)}"
    assert other.reads_own_clock == store.reads_own_clock
    store.close()
    other.close()


def test_a_url_opened_by_the_class_itself_is_as_good() -> None:
    """By position or by name; a subclass stays one."""

    class Mine(SqliteStore):
        pass

    globals()["Mine"] = Mine
    Mine.__qualname__ = "Mine"
    for store in (
        RedisStore.from_url("redis://localhost:1", timeout_ms=50),
        RedisStore.from_url(url="redis://localhost:1", timeout_ms=50),
        Mine.from_url("sqlite:////tmp/somewhere.db", timeout_ms=50),
    ):
        other = again(store)
        assert type(other) is type(store)
        assert other.timeout_ms == 50  # type: ignore[attr-defined]
        store.close()
        other.close()


@pytest.mark.parametrize("mode", ["strict", "cached-deny", "leased"])
def test_two_tiers_are_pickled_without_what_they_hold(mode: str, tmp_path: Path) -> None:
    """Credits are of one node: the other leases its own, within the limit of both."""
    store = open_store(f"sqlite:///{tmp_path}/limits.db")
    limiter = two_tier("10/minute", store, mode, batch=4, prefix="p", max_keys=7)
    assert limiter.check("k")
    other = again(limiter)
    assert (type(other), other.prefix) == (type(limiter), "p")
    assert sum(bool(one.check("k")) for _ in range(9) for one in (limiter, other)) == 9
    for one in (limiter, other):
        one.close()
        one.store.close()


def test_a_batch_that_learns_is_pickled_by_its_parameters() -> None:
    """What it learned stays where it was learned."""
    batch = AdaptiveBatch(order_cost=7.0, least=2, most=90, smoothing=0.5)
    batch.observe("k", 1_000, 5)
    other = again(batch)
    assert (other.order_cost, other.least, other.most, other.smoothing) == (7.0, 2, 90, 0.5)
    assert other.size("k") == 2 < batch.size("k")


class Bare(Store):
    """As somebody might write it."""

    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        return transform.run(None, now, cost).result


class Picklable(Bare):
    """One that knows how."""

    def __reduce__(self) -> Any:
        return Picklable, ()


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (lambda: rate_limit("5/minute"), "counts are in the memory of this process.*store="),
        (lambda: rate_limit("5/minute", store=MemoryStore()), "not opened from a URL.*open_store"),
        (MemoryStore, "MemoryStore cannot be pickled.*open_store"),
        (lambda: SqliteStore("/tmp/somewhere.db"), "SqliteStore cannot be pickled.*open_store"),
        (Bare, "Bare cannot be pickled"),
        (lambda: Limiter(gcra(5, 1_000), Bare()), "rate_limit, Limits or two_tier"),
        (lambda: ManualClock(5), "the copy would not move"),
        (ConcurrencyLimiter, "its ceiling is learned in this process"),
        (
            lambda: rate_limit("5/minute", store=open_store("memory://"), clock=ManualClock(5)),
            "ManualClock",
        ),
    ],
)
def test_what_cannot_be_pickled_says_why_and_what_to_do(thing: Any, words: str) -> None:
    """In words of ours, by every protocol, and for copies as well."""
    made = thing()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(UnsupportedError, match=words) as caught:
            pickle.dumps(made, protocol)
        assert caught.value.code == "not_implemented"
    with pytest.raises(PenstockError, match=words):
        copy.deepcopy(made)


def test_a_store_of_ones_own_may_know_how() -> None:
    """Then a limiter on it is pickled, too."""
    limiter = rate_limit("5/minute", store=Picklable(), clock=SystemClock())
    other = again(limiter)
    assert isinstance(other.store, Picklable)
    assert isinstance(other.clock, SystemClock)


DUMP = (
    "import json, pickle, penstock as p; from penstock.stores import open_store;"
    "limiter = p.rate_limit('5/minute', store=open_store('memory://'), prefix='x');"
    "print(json.dumps(pickle.dumps(limiter).hex()))"
)


@pytest.mark.parametrize(("here", "there"), [("0", "1"), ("1", "0")])
def test_a_limiter_pickled_on_one_path_is_made_on_the_other(here: str, there: str) -> None:
    """Compiled here and interpreted there, or the reverse."""

    def run_python(code: str, pure: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PENSTOCK_PURE": pure},
            timeout=60,
            check=True,
        )
        return json.loads(done.stdout)

    data = run_python(DUMP, here)
    load = (
        f"import json, pickle; limiter = pickle.loads(bytes.fromhex({data!r}));"
        "print(json.dumps([limiter.prefix, limiter.check('k').remaining]))"
    )
    assert run_python(load, there) == ["x", 4]
