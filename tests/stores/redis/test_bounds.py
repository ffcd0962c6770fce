"""No call keeps a server busy for long, and a reply that is late by our own doing is no outage."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Limits,
    ManualClock,
    OverloadedError,
    StoreUnavailableError,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
)
from penstock.core._validation import MAX_PARTS
from penstock.stores._sheet import ConnectionFailedError
from penstock.stores.redis import RedisStore
from penstock.stores.redis._requests import Pulse
from tests.servers import Valkey, require
from tests.stores.redis.live import PATIENT_MS, SPAN_MS, running
from tests.support.helpers import NOW

LOG = sliding_window_log(MAX_PARTS, SPAN_MS)
# A noisy machine may stop the server for a while; without the bounds these calls take seconds.
LONGEST_US = 300_000


def test_the_heaviest_calls_keep_the_server_busy_for_milliseconds() -> None:
    require("valkey")
    with Valkey(args=("--slowlog-log-slower-than", "0", "--slowlog-max-len", "1000")) as server:
        store = RedisStore.from_url(server.url, timeout_ms=PATIENT_MS)
        log = rate_limit(LOG, store=store, prefix="log")
        ring = rate_limit(sliding_window(MAX_PARTS, SPAN_MS, 100_000), store=store, prefix="ring")
        log.reserve("refunded", MAX_PARTS).cancel()
        assert log.check("spent", MAX_PARTS)
        log.peek("spent")
        log.forecast("spent")
        log.pause("paused", int(time.time() * 1000) + 1_000)
        log.check_many([f"{number}" for number in range(MAX_PARTS)])
        log.check_many([f"{number}" for number in range(50)], MAX_PARTS // 50)
        ring.check("k", 100)
        ring.check_many([f"{number}" for number in range(3_000)])
        store.close()
        lines: Any = server.call("SLOWLOG", "GET", 1000)
        took = {line[3][0].upper(): line[2] for line in sorted(lines, key=lambda line: line[2])}
    assert 0 < took["EVALSHA"] < LONGEST_US


@pytest.mark.parametrize("keys", [2, 1_000])
def test_a_batch_of_a_log_is_bounded_in_keys_times_cost(
    store: RedisStore, key: str, keys: int
) -> None:
    limiter = rate_limit(LOG, store=store, prefix=key)
    names = [f"{number}" for number in range(keys)]
    most = MAX_PARTS // keys
    with pytest.raises(ConfigInvalidError, match=r"at most 5000 are allowed.*or a lower cost"):
        limiter.check_many(names, most + 1)
    assert all(decision.remaining == MAX_PARTS for decision in map(limiter.peek, names[:3]))
    assert all(limiter.check_many(names, most))
    # More than the limit is denied, whatever the number of keys, and writes nothing.
    assert not any(limiter.check_many(names, MAX_PARTS + 1))


def test_a_ring_of_too_many_parts_is_rejected_when_its_limiter_is_made(store: RedisStore) -> None:
    for make in (
        lambda ring: rate_limit(ring, store=store),
        lambda ring: Limits({"a": ring}, store=store),
    ):
        make(sliding_window(5_000, SPAN_MS, 100_000))
        make(sliding_window(10**9, SPAN_MS, 5_000))
        with pytest.raises(ConfigInvalidError, match="use at most 5000 buckets"):
            make(sliding_window(5_001, SPAN_MS, 5_001))


def test_several_logs_are_bounded_together(store: RedisStore, key: str) -> None:
    limits = Limits(
        {"a": LOG, "b": LOG, "c": gcra(10_000, 10_000)}, store=store, prefix=f"{{{key}}}"
    )
    keys = {"a": "k", "b": "k", "c": "k"}
    with pytest.raises(ConfigInvalidError, match="would write 5002 units of sliding_window_log"):
        limits.check(keys, 2_501)
    assert limits.check(keys, 2_500)
    with pytest.raises(ConfigInvalidError, match="would write 10000 units"):
        limits.pause({"a": "k", "b": "k"}, int(time.time() * 1000) + 1_000)


def test_async_calls_of_several_logs_are_bounded_together(key: str) -> None:
    async def main() -> None:
        store = RedisStore.from_url(running("valkey").url, timeout_ms=PATIENT_MS)
        limits = Limits({"a": LOG, "b": LOG}, store=store, prefix=key)
        assert await limits.acheck({"a": "k", "b": "k"})
        with pytest.raises(ConfigInvalidError, match="would write 5002 units"):
            await limits.acheck({"a": "k", "b": "k"}, 2_501)
        with pytest.raises(ConfigInvalidError, match="would write 10000 units"):
            await rate_limit(LOG, store=store, prefix="many").acheck_many(["x", "y"], MAX_PARTS)
        await store.aclose()

    asyncio.run(main())


def test_a_refund_that_spans_thousands_of_instants_takes_milliseconds() -> None:
    """Units of the refunded charge were taken by another one, so that those of others are."""
    require("valkey")
    with Valkey(args=("--slowlog-log-slower-than", "0", "--slowlog-max-len", "1000")) as server:
        clock = ManualClock(NOW)
        store = RedisStore.from_url(server.url, timeout_ms=PATIENT_MS, use_server_time=False)
        limiter = rate_limit(LOG, store=store, clock=clock)
        charge = limiter.reserve("k", 2_000)
        server.call("DEL", "k")
        server.call("ZADD", "k", *(word for n in range(2_000) for word in (NOW + n, f"m{n}")))
        clock.advance(2_000)
        charge.cancel()
        assert server.call("EXISTS", "k") == 0
        store.close()
        lines: Any = server.call("SLOWLOG", "GET", 1000)
    assert max(line[2] for line in lines if line[3][0].upper().startswith("EVAL")) < LONGEST_US


# A late reply: outage or overload.


@pytest.mark.parametrize(
    ("answered_s_ago", "is_overload"), [(0.01, True), (0.04, True), (0.06, False), (5.0, False)]
)
def test_a_late_reply_is_overload_if_the_server_answered_just_now(
    answered_s_ago: float, is_overload: bool
) -> None:
    pulse = Pulse(0.1)
    pulse.answered_at = 100.0 - answered_s_ago
    late = ConnectionFailedError("late", may_have_run=True)
    assert pulse.judge(late, 100.0).is_overload is is_overload


def test_overload_ends_a_second_after_the_last_answer() -> None:
    """The server works off what it has read before it answers new requests."""
    pulse = Pulse(0.1)
    pulse.answered_at = 100.0

    def judged(now: float) -> bool:
        return pulse.judge(ConnectionFailedError("late", may_have_run=True), now).is_overload

    assert [judged(now) for now in (100.04, 100.2, 100.6, 100.9)] == [True] * 4
    assert [judged(now) for now in (101.1, 101.2)] == [False, False]


def test_parallel_batches_that_queue_are_overloaded_and_not_away() -> None:
    """Far more than the server answers within the deadline, in one connection."""

    async def main() -> None:
        require("valkey")
        with Valkey() as server:
            store = RedisStore.from_url(server.url, timeout_ms=150)
            limiter = rate_limit(sliding_window_log(MAX_PARTS, SPAN_MS), store=store)
            await limiter.acheck("first")
            calls = [limiter.acheck(f"{n}", MAX_PARTS) for n in range(100)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            failed = [answer for answer in answers if isinstance(answer, Exception)]
            assert failed
            assert len(failed) < len(answers)
            assert {type(failure) for failure in failed} == {OverloadedError}
            assert {failure.code for failure in failed} == {"overloaded"}
            await store.aclose()

    asyncio.run(main())


def test_a_server_that_stops_is_away_however_many_calls_wait() -> None:
    async def main() -> None:
        require("valkey")
        with Valkey() as server:
            store = RedisStore.from_url(server.url, timeout_ms=300)
            limiter = rate_limit(gcra(5, SPAN_MS), store=store)
            await limiter.acheck("k")
            server.pause()
            try:
                calls = [limiter.acheck(f"{n}") for n in range(100)]
                answers = await asyncio.gather(*calls, return_exceptions=True)
            finally:
                server.resume()
            assert {type(answer) for answer in answers} == {StoreUnavailableError}
            await store.aclose()

    asyncio.run(main())
