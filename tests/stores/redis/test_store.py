"""RedisStore on real servers: the decisions of memory, in as few round trips as promised."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from bench.turns import TurnCounter
from penstock import (
    ConfigInvalidError,
    ManualClock,
    MemoryStore,
    Outcome,
    UnsupportedError,
    gcra,
    rate_limit,
    token_bucket,
)
from penstock.core._transform import Transform, checking
from penstock.stores.redis import RedisStore
from tests.servers import FaultProxy, RedisServer
from tests.stores.redis.live import FIVE, PATIENT_MS, new_key, running, url_of
from tests.support.helpers import NOW, Quota, run


def by_caller(name: str = "valkey") -> RedisStore:
    return RedisStore.from_url(url_of(name), use_server_time=False, timeout_ms=PATIENT_MS)


@pytest.mark.parametrize("kind", [*FIVE, "quota"])
@pytest.mark.parametrize("name", ["valkey", "redis8", "cluster"])
def test_decisions_are_those_of_memory(name: str, kind: str) -> None:
    """check, peek, forecast, check_many and reset, field by field, over a short life."""
    strategy = Quota(7) if kind == "quota" else FIVE[kind](7)
    clock, key = ManualClock(NOW), new_key()
    store = by_caller(name)
    ours = rate_limit(strategy, store=store, clock=clock)
    theirs = rate_limit(strategy, store=MemoryStore(clock=clock), clock=clock)

    async def awaited(call: str, *arguments: Any) -> Any:
        return await getattr(ours, f"a{call}")(*arguments)

    async def plain(call: str, *arguments: Any) -> Any:
        return getattr(ours, call)(*arguments)

    async def oracle(call: str, *arguments: Any) -> Any:
        return getattr(theirs, call)(*arguments)

    async def life(ask: Any, key: str) -> list[Any]:
        clock.set(NOW)
        seen = [await ask("check", key), await ask("peek", key), await ask("check", key, 3)]
        clock.advance(3_333)
        if kind != "quota":
            seen += [await ask("forecast", key), await ask("forecast", key, 2)]
        seen += await ask("check_many", [key, f"{key}b", key, key, key])
        clock.set(NOW - 5_000)
        seen += [await ask("check", key), await ask("peek", key), await ask("reset", key)]
        return [*seen, await ask("peek", key), await ask("check", key, 7), await ask("check", key)]

    async def main() -> None:
        wanted = await life(oracle, "k")
        assert await life(plain, f"{key}1") == wanted
        assert await life(awaited, f"{key}2") == wanted
        await store.aclose()

    run(main())


@pytest.mark.parametrize("kind", FIVE)
def test_many_keys_are_decided_as_one_after_the_other(store: RedisStore, kind: str) -> None:
    """More keys than fit one script, some of them repeated, in order."""
    limiter = rate_limit(FIVE[kind](2), store=store, prefix=new_key())
    keys = [f"k{number % 550}" for number in range(1_300)]
    decisions = limiter.check_many(keys)
    assert [decision.allowed for decision in decisions] == [n < 1_100 for n in range(1_300)]
    assert {decision.remaining for decision in decisions[:550]} == {1}
    assert {decision.remaining for decision in decisions[550:]} == {0}


def test_many_keys_are_decided_at_one_instant(key: str) -> None:
    """By the server's clock too: every key of a batch is full again at the same time."""
    store = RedisStore.from_url(url_of("valkey"), timeout_ms=PATIENT_MS)
    limiter = rate_limit(gcra(10, 600_000), store=store, prefix=key)
    for count in (400, 5_000):
        decisions = limiter.check_many([f"{count}-{number}" for number in range(count)])
        assert len({decision.reset_at for decision in decisions}) == 1
    store.close()


def test_the_servers_clock_decides(key: str) -> None:
    """A caller who lies about the time gains nothing, and none may bring a clock."""
    store = RedisStore.from_url(url_of("valkey"), timeout_ms=PATIENT_MS)
    transform = checking(gcra(1, 600_000))
    assert store.apply(key, transform, NOW, 1).allowed
    assert not store.apply(key, transform, NOW + 10_000_000, 1).allowed
    with pytest.raises(ConfigInvalidError, match="use_server_time=False"):
        rate_limit(gcra(1, 1_000), store=store, clock=ManualClock(NOW))
    store.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_operation_is_one_round_trip(server: RedisServer, key: str, mode: str) -> None:
    """Counted at the wire: a peek asks for the state and the time together."""
    with TurnCounter(server.port) as wire:
        store = RedisStore.from_url(wire.url_of(server.url), timeout_ms=PATIENT_MS)
        limiter = rate_limit(token_bucket(200, 1), store=store)
        many = [key, *map(str, range(100))]

        async def ask(call: str, *arguments: Any) -> int:
            """The round trips of one operation."""
            before = wire.turns
            if mode == "sync":
                getattr(limiter, call)(*arguments)
            else:
                await getattr(limiter, f"a{call}")(*arguments)
            return wire.turns - before

        async def life() -> list[int]:
            calls = [("check", key), ("peek", key), ("forecast", key), ("check_many", many)]
            calls.append(("reset", key))
            return [await ask(*call) for call in calls]

        async def main() -> None:
            await life()
            assert await life() == [1] * 5
            await store.aclose()

        run(main())
        assert wire.connections == 1


def test_many_keys_of_a_custom_strategy_are_two_round_trips(server: RedisServer, key: str) -> None:
    """One to read them all, one to write them all."""
    with TurnCounter(server.port) as wire:
        store = RedisStore.from_url(wire.url_of(server.url), timeout_ms=PATIENT_MS)
        limiter = rate_limit(Quota(2), store=store, prefix=key)
        limiter.check("warm")
        before = wire.turns
        keys = [f"k{number % 40}" for number in range(100)]
        decisions = limiter.check_many(keys)
        assert wire.turns - before == 2
        assert [decision.allowed for decision in decisions] == [n < 80 for n in range(100)]
        store.close()


def test_a_custom_strategy_holds_its_limit_among_threads_of_batches(
    store: RedisStore, key: str
) -> None:
    """Batches that share keys race; each is decided anew on what the winner wrote."""
    limiter = rate_limit(Quota(20), store=store, prefix=key)
    seen: list[Any] = []
    keys = ["{a}1", "{a}2", "b", "{a}1"]

    def work() -> None:
        for _ in range(5):
            seen.extend(zip(keys, limiter.check_many(keys), strict=True))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 120
    for name in set(keys):
        assert sum(decision.allowed for asked, decision in seen if asked == name) == 20


def test_the_custom_path_keeps_a_record_that_can_be_read(server: RedisServer, key: str) -> None:
    """Format, strategy, expiry and state as JSON; the TTL is generous."""
    store = RedisStore.from_url(server.url, use_server_time=False, timeout_ms=PATIENT_MS)
    limiter = rate_limit(Quota(5, ttl_ms=1_000), store=store, clock=ManualClock(NOW))
    limiter.check(key, 2)
    record = json.loads(str(server.call("GET", key)))
    assert record == {"v": 1, "strategy": "Quota", "expires_at": NOW + 1_000, "state": 2}
    assert int(str(server.call("PTTL", key))) > 59_000
    store.close()


def test_a_caller_ahead_of_the_server_keeps_the_record_until_the_right_time(key: str) -> None:
    """A clock that runs an hour fast must not make the key vanish an hour early."""
    store = by_caller()
    server_seconds, _ = running("valkey").call("TIME")
    clock = ManualClock(int(server_seconds) * 1000 + 3_600_000)
    rate_limit(Quota(5, ttl_ms=1_000), store=store, clock=clock).check(key)
    assert int(running("valkey").call("PTTL", key)) > 3_600_000
    store.close()


def test_two_strategies_on_one_key_are_told_to_use_prefixes(server: RedisServer, key: str) -> None:
    """Whichever of them comes second, in whichever encoding."""
    store = RedisStore.from_url(server.url, timeout_ms=PATIENT_MS)
    makers: list[Any] = [*FIVE.values(), Quota]
    for number, first in enumerate(makers):
        for other, second in enumerate(makers):
            name = f"{key}-{number}-{other}"
            rate_limit(first(5), store=store).check(name)
            held, asked = first(5).name, second(5).name
            hashes = {"token_bucket", "fixed_window", "sliding_window"}
            if held == asked or {held, asked} <= hashes:
                continue
            for operation in ("check", "peek"):
                with pytest.raises(ConfigInvalidError, match="prefix"):
                    getattr(rate_limit(second(5), store=store), operation)(name)
    store.close()


def test_a_role_that_no_accelerator_knows_is_refused(key: str) -> None:
    """Rather than writing the state in a form that the scripts could not read."""
    store = by_caller()
    strategy = gcra(5, 1_000)
    audit = Transform(strategy, "audit", lambda s, n, c: Outcome(s, None, 1, True), lambda n, r: 0)
    with pytest.raises(UnsupportedError, match="audit"):
        store.apply(key, audit, NOW, 1)
    store.close()


def test_concurrent_tasks_share_writes(key: str) -> None:
    """200 tasks are one connection and far fewer packets than requests."""
    with FaultProxy(running("valkey").port) as proxy:

        async def main() -> None:
            store = RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}", timeout_ms=PATIENT_MS)
            limiter = rate_limit(gcra(50, 600_000), store=store)
            await limiter.acheck(f"{key}-warm")
            before = proxy.chunks_to_server
            decisions = await asyncio.gather(*(limiter.acheck(key) for _ in range(200)))
            assert sum(decision.allowed for decision in decisions) == 50
            assert proxy.chunks_to_server - before <= 200 / 10
            await store.aclose()

        run(main())
        assert proxy.connections == 1


def test_threads_share_a_store(store: RedisStore, key: str) -> None:
    """12 threads on two limits: exact counts, and nobody gets another's reply."""
    wide, narrow = (
        rate_limit(gcra(limit, 600_000), store=store, prefix=f"{key}{limit}") for limit in (100, 50)
    )
    seen: list[Any] = []

    def work(limiter: Any) -> None:
        seen.extend((limiter, limiter.check(key)) for _ in range(20))

    threads = [threading.Thread(target=work, args=(which,)) for which in (wide, narrow) * 6]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(decision.limit == limiter.strategy.limit for limiter, decision in seen)
    assert [sum(d.allowed for who, d in seen if who is limiter) for limiter in (wide, narrow)] == [
        100,
        50,
    ]


def test_a_store_follows_its_caller_from_loop_to_loop(store: RedisStore, key: str) -> None:
    """One loop after the other, and two at once in two threads."""
    limiter = rate_limit(gcra(1_000, 600_000_000), store=store)

    async def spend(count: int) -> None:
        await asyncio.gather(*(limiter.acheck(key) for _ in range(count)))
        await store.aclose()

    run(spend(10))
    run(spend(10))
    threads = [threading.Thread(target=run, args=(spend(40),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limiter.peek(key).remaining == 900


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_loops_that_end_without_a_word_leave_no_sockets(key: str) -> None:
    """A program that calls asyncio.run again and again holds the connection of the last one."""
    store = RedisStore.from_url(url_of("valkey"), timeout_ms=PATIENT_MS)
    limiter = rate_limit(gcra(1_000, 600_000), store=store)
    asyncio.run(limiter.acheck(key))
    before = _open_files()
    for _ in range(20):
        asyncio.run(limiter.acheck(key))
    assert _open_files() <= before + 2
    store.close()
    assert _open_files() < before + 2


def _open_files() -> int:
    gc.collect()
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_opens_its_own_connections(key: str) -> None:
    """Parent and child check at the same time, each on a limit of its own: no mixed replies."""
    store = RedisStore.from_url(url_of("valkey"), timeout_ms=PATIENT_MS)
    wide, narrow = (rate_limit(gcra(n, 600_000), store=store, prefix=f"{key}{n}") for n in (300, 7))

    async def both(limiter: Any) -> list[int]:
        await limiter.acheck("a")
        child = os.fork() if limiter is wide else 0
        if limiter is wide and child == 0:
            # A loop cannot be used in a fork of its process: the child brings its own.
            thread = threading.Thread(target=lambda: os._exit(_child(narrow)))
            thread.start()
            thread.join()
        limits = [(await limiter.acheck("a")).limit for _ in range(50)]
        limits += [limiter.check("a").limit for _ in range(50)]
        _, status = os.waitpid(child, 0)
        await store.aclose()
        return [*limits, os.waitstatus_to_exitcode(status)]

    wide.check("a")
    assert run(both(wide)) == [300] * 100 + [0]
    assert wide.peek("a").remaining == 300 - 102
    store.close()


def _child(limiter: Any) -> int:
    async def tasks() -> set[int]:
        return {(await limiter.acheck("a")).limit for _ in range(50)}

    limits = {limiter.check("a").limit for _ in range(50)} | asyncio.run(tasks())
    return 0 if limits == {7} else 1
