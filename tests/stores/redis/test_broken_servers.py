"""Replies that no server should send: each is `store_unavailable` within the deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limits,
    StoreUnavailableError,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window_log,
    slots,
)
from penstock.core._validation import MAX_SAFE
from penstock.stores.redis import RedisStore
from penstock.stores.redis._requests import Address, Refusal
from penstock.stores.redis._topology import Cluster, Sentinels
from tests.stores.redis.broken import BrokenServer, broken_server, resp
from tests.stores.redis.scripted import HERE, Script, check
from tests.stores.redis.scripted import slots as slot_table
from tests.support.effort import count
from tests.support.helpers import Quota

TIMEOUT_MS = 150
YES = [1, 10, 9, 1_000, 0]

WRONG: list[bytes] = [
    b":7\r\n",
    b"+OK\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"$3\r\nabc\r\n",
    b"*0\r\n",
    b"*1\r\n:1\r\n",
    b"%1\r\n:1\r\n:2\r\n",
    b",1.5\r\n",
    b"#t\r\n",
    b"_\r\n",
    b"(123456789012345678901234567890\r\n",
    b"*4000000000\r\n",
    b"*" * 40,
    b"*1\r\n" * 60,
    b"?what\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"-\r\n",
    b"-ERR \xff\xfe\r\n",
    b"-MOVED\r\n",
    b"-MOVED x y\r\n",
    b"-ASK 1 :\r\n",
    resp(YES[:4]),
    resp([*YES, 1]),
    resp([2, 10, 9, 1_000, 0]),
    resp([1, 10, 9, 1_000, 5]),
    resp([0, 10, 9, 1_000, 0]),
    resp([1, -10, 9, 1_000, 0]),
    resp([1, 10, -9, 1_000, 0]),
    resp([1, 10, 9, -1_000, 0]),
    resp([0, 10, 9, 1_000, -5]),
    resp([1, 10, 2**60, 1_000, 0]),
    resp([1, 10, b"9", 1_000, 0]),
    resp([1, 10, [9], 1_000, 0]),
    resp([[1, 10, 9, 1_000, 0]]),
    resp([10, 10**9, 9, 1_000, 0]),
    resp([10, 2, 9, 1_000, 0]),
    resp([10, 1, 9, 1_000, 0]),
    resp([10, -1, 9, 1_000, 0, 4, 9, 1_000, 0]),
    resp([10, 0, 9, 1_000, 0, 3, 9, 1_000, 0]),
    resp([b"9" * 400, b"0"]),
    resp([b"x", b"y"]),
    resp([b"1"]),
]


@pytest.fixture(scope="module")
def server() -> Iterator[BrokenServer]:
    with broken_server() as started:
        yield started


def stores(server: BrokenServer) -> RedisStore:
    return RedisStore.from_url(f"redis://127.0.0.1:{server.port}", timeout_ms=TIMEOUT_MS)


def calls_on(store: RedisStore) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """One of each kind, sync and async."""
    rate = rate_limit(gcra(10, 1_000), store=store, prefix="rate")
    log = rate_limit(sliding_window_log(10, 1_000), store=store, prefix="log")
    slot = rate_limit(slots(3), store=store, prefix="slots")
    quota = rate_limit(Quota(5), store=store, prefix="quota")
    limits = Limits({"a": gcra(10, 1_000), "b": fixed_window(5, 1_000)}, store=store, prefix="all")
    mixed = Limits({"a": gcra(10, 1_000), "b": Quota(5)}, store=store, prefix="mixed")
    both = {"a": "k", "b": "k"}
    return {
        "check": (lambda: rate.check("k"), lambda: rate.acheck("k")),
        "check_many": (
            lambda: rate.check_many(["a", "b", "c"]),
            lambda: rate.acheck_many(["a", "b", "c"]),
        ),
        "peek": (lambda: log.peek("k"), lambda: log.apeek("k")),
        "forecast": (lambda: rate.forecast("k"), lambda: rate.aforecast("k")),
        "reserve": (lambda: rate.reserve("k", 2), lambda: rate.areserve("k", 2)),
        "book": (
            lambda: rate.reserve("k", 2, max_wait_ms=5),
            lambda: rate.areserve("k", 2, max_wait_ms=5),
        ),
        "slot": (lambda: slot.reserve("k"), lambda: slot.areserve("k")),
        "quota": (lambda: quota.check("k"), lambda: quota.acheck("k")),
        "quotas": (lambda: quota.check_many(["a", "b"]), lambda: quota.acheck_many(["a", "b"])),
        "limits": (lambda: limits.check(both), lambda: limits.acheck(both)),
        "mixed": (lambda: mixed.check(both), lambda: mixed.acheck(both)),
        "peek_all": (lambda: limits.peek(both), lambda: limits.apeek(both)),
    }


KINDS = [
    "check",
    "check_many",
    "peek",
    "forecast",
    "reserve",
    "book",
    "slot",
    "quota",
    "quotas",
    "limits",
    "mixed",
    "peek_all",
]


def assert_refused_or_sound(call: Callable[[], Any]) -> None:
    """An answer has to be one that a server may give; anything else is an error of ours."""
    began = time.monotonic()
    try:
        answer = call()
    except (StoreUnavailableError, ConfigInvalidError):
        pass
    else:
        assert_sound(answer)
    assert time.monotonic() - began < TIMEOUT_MS / 1000 + 2


def assert_sound(answer: Any) -> None:
    if isinstance(answer, list):
        assert len(answer) in (2, 3)
        for each in answer:
            assert_sound(each)
    elif isinstance(answer, Decision):
        assert type(answer.allowed) is bool
        numbers = (answer.limit, answer.remaining, answer.reset_at, answer.retry_after_ms)
        assert all(type(number) is int and 0 <= number <= MAX_SAFE for number in numbers)
        assert answer.allowed == (answer.retry_after_ms == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_reply_is_an_error_of_ours_within_the_deadline(
    server: BrokenServer, kind: str
) -> None:
    store = stores(server)
    sync, awaited = calls_on(store)[kind]

    async def main() -> None:
        for reply in WRONG:
            server.answer(reply)
            assert_refused_or_sound(sync)
            began = time.monotonic()
            with suppress(StoreUnavailableError, ConfigInvalidError):
                assert_sound(await awaited())
            assert time.monotonic() - began < TIMEOUT_MS / 1000 + 2
        await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    "reply",
    [
        resp([10, 3, 9, 1_000]),
        resp([10, 2, 9, 1_000, 0]),
        resp([10, 4, 9, 1_000, 0]),
        resp([10, 10**9, 9, 1_000, 0]),
        resp([10, 1, 9, 1_000, 0, 1, 9, 1_000, 0, 0, 9, 1_000, 0, 1, 9, 1_000, 0]),
        resp([10, -1, 9, 1_000, 0, 4, 9, 1_000, 0]),
        resp([]),
        resp([10]),
    ],
)
def test_run_lengths_that_do_not_fit_the_keys_are_rejected(
    server: BrokenServer, reply: bytes
) -> None:
    """None is expanded before it is known to fit."""
    store = stores(server)
    server.answer(reply)
    with pytest.raises(StoreUnavailableError, match="not an answer to the request"):
        rate_limit(gcra(10, 1_000), store=store).check_many(["a", "b", "c"])
    server.answer(resp([10, 2, 9, 1_000, 0, 1, 0, 1_000, 5]))
    answers = rate_limit(gcra(10, 1_000), store=store).check_many(["a", "b", "c"])
    assert [answer.allowed for answer in answers] == [True, True, False]
    store.close()


def test_random_replies_never_escape_as_another_error(server: BrokenServer) -> None:
    """Mutations of sound replies, and nested lists of anything."""
    rng = random.Random(7)
    store = stores(server)
    calls = calls_on(store)

    def anything(depth: int = 0) -> Any:
        choice = rng.randrange(7 if depth < 3 else 5)
        if choice == 0:
            return rng.choice([0, 1, -1, 2**53, -(2**62), rng.randrange(100)])
        if choice == 1:
            return rng.choice([b"", b"\xff\xfe", b"1", b"1700000000", b"a:b", b"1e400", b"nan"])
        if choice == 2:
            return None
        if choice < 5:
            return rng.randrange(12)
        return [anything(depth + 1) for _ in range(rng.randrange(12))]

    for _ in range(count(150, 2_000)):
        reply = resp(anything())
        if rng.random() < 0.2:
            place = rng.randrange(len(reply))
            reply = reply[:place] + bytes([rng.randrange(256)]) + reply[place + 1 :] + b"\r\n:1\r\n"
        server.answer(reply)
        sync, _ = calls[rng.choice(KINDS)]
        assert_refused_or_sound(sync)
    store.close()


def test_an_endless_reply_ends_at_the_deadline(server: BrokenServer) -> None:
    store = RedisStore.from_url(f"redis://127.0.0.1:{server.port}", timeout_ms=200)
    limiter = rate_limit(gcra(10, 1_000), store=store)
    server.answer(b"$2000000000\r\n" + b"x" * 50_000_000)
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="in time"):
        limiter.check("k")
    with pytest.raises(StoreUnavailableError, match="in time"):
        asyncio.run(limiter.acheck("k"))
    assert time.monotonic() - began < 3
    server.answer(b"$-1\r\n")
    store.close()


@pytest.mark.parametrize(
    "text",
    [
        "MOVED",
        "MOVED 1",
        "MOVED 1 nowhere",
        "MOVED x there:2",
        "MOVED -1 there:2",
        "MOVED 16384 there:2",
        "MOVED 99999999999999999999999 there:2",
        "MOVED 1 there:",
        "MOVED 1 there:x",
        "MOVED 1 there:0",
        "MOVED 1 there:65536",
        "MOVED 1 there:\u0663",
        "ASK",
        "ASK 1 there",
        "ASK 1 there:-2",
    ],
)
def test_a_malformed_redirection_is_store_unavailable(text: str) -> None:
    script = Script([slot_table(HERE)], [Refusal(text)])
    with pytest.raises(StoreUnavailableError, match=r"which is no redirection.*was not charged"):
        check(script, Cluster([HERE]))


@pytest.mark.parametrize(
    "table",
    [
        None,
        7,
        b"x",
        [],
        [7],
        [[]],
        [[0, 16_383]],
        [[0, 16_383, None]],
        [[0, 16_383, []]],
        [[0, 16_383, [b"there"]]],
        [[0, 16_383, [b"there", b"x"]]],
        [[0, 16_383, [b"there", 70_000]]],
        [[0, 16_383, [7, 6_379]]],
        [[0, 10**8, [b"there", 6_379]]],
        [[-5, 16_383, [b"there", 6_379]]],
        [[9, 3, [b"there", 6_379]]],
        [[b"0", b"16383", [b"there", 6_379]]],
        [[0, 1, [b"there", 6_379]]] * 20_000,
        Refusal("ERR unknown command"),
    ],
)
def test_a_malformed_slot_table_is_store_unavailable(table: Any) -> None:
    """A range of 10**8 slots is not expanded."""
    script = Script(*[[table]] * 20)
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="no cluster node knows the slots"):
        check(script, Cluster([HERE]))
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    "reply", [7, b"x", [], [b"there"], [b"there", b"x"], [b"there", b""], [None, []], [[], []]]
)
def test_a_malformed_answer_of_a_sentinel_is_store_unavailable(reply: Any) -> None:
    script = Script(*[[reply]] * 20)
    with pytest.raises(StoreUnavailableError, match="no master for 'm'"):
        check(script, Sentinels([HERE], "m"))


@pytest.mark.parametrize("role", [7, None, b"master", [], [None], [[b"master"]], [b"slave"]])
def test_a_server_that_does_not_say_master_is_none(role: Any) -> None:
    script = Script(*[[[b"there", b"2"]], [role]] * 20)
    with pytest.raises(StoreUnavailableError, match="is not a master yet"):
        check(script, Sentinels([Address("sentinel", 1, sentinel=True)], "m"))
