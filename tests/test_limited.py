"""`limited`: functions and blocks behind a limit, sync and async."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Limit,
    Limits,
    ManualClock,
    MemoryStore,
    RateLimitExceededError,
    fixed_window,
    limited,
    rate_limit,
    slots,
)
from tests.stores.redis.live import PATIENT_MS, new_key, url_of
from tests.support.helpers import NOW, GoneStore, run


def calls_admitted(call: Any, times: int = 20) -> int:
    """How many calls go through until the first that does not."""
    admitted = 0
    with contextlib.suppress(RateLimitExceededError):
        for _ in range(times):
            answer = call()
            if inspect.iscoroutine(answer):
                run(answer)
            admitted += 1
    return admitted


def test_a_function_has_one_limit_for_all_its_calls() -> None:
    """Without a key; its name, text and signature stay."""

    @limited("3/minute", timeout=0)
    def send(user: str, text: str = "hello") -> str:
        """Sends something."""
        return f"{user}: {text}"

    assert send("alice") == "alice: hello"
    assert send.__name__ == "send"
    assert send.__doc__ == "Sends something."
    assert list(inspect.signature(send).parameters) == ["user", "text"]
    assert calls_admitted(lambda: send("bob", text="bye")) == 2


def test_a_denial_carries_the_decision_and_the_function_is_not_called() -> None:
    seen = []
    clock = ManualClock(NOW)

    @limited(fixed_window(1, 60_000, anchor="first"), timeout=0, clock=clock)
    def note(value: int) -> None:
        seen.append(value)

    note(1)
    with pytest.raises(RateLimitExceededError) as caught:
        note(2)
    assert caught.value.decision.retry_after_ms == 60_000
    assert seen == [1]


@pytest.mark.parametrize(
    "key",
    ["{user}", "{0}", "{user:.3}", lambda user, **_: user, "{user[0]}"],
    ids=["name", "position", "spec", "function", "item"],
)
def test_a_key_is_a_format_or_a_function_of_the_arguments(key: Any) -> None:
    """By whatever way the argument was passed."""

    @limited("2/minute", key=key, timeout=0)
    def send(user: str, text: str = "") -> None: ...

    assert calls_admitted(lambda: send("alice")) == 2
    assert calls_admitted(lambda: send(user="bob", text="x")) == 2
    with pytest.raises(RateLimitExceededError):
        send(user="alice")


def test_defaults_attributes_and_further_names_may_stand_in_a_format() -> None:
    class User:
        name = "carol"

    @limited("1/minute", key="{user.name}/{region}/{extra}", timeout=0)
    def send(user: User, region: str = "eu", **rest: str) -> None: ...

    send(User(), extra="a")
    send(User(), extra="b")
    with pytest.raises(RateLimitExceededError):
        send(User(), region="eu", extra="a")


def test_methods_are_limited_by_their_arguments() -> None:
    class Mailer:
        def __init__(self, name: str) -> None:
            self.name = name

        @limited("1/minute", key="{self.name}", timeout=0)
        def send(self) -> str:
            return self.name

        @staticmethod
        @limited("1/minute", timeout=0)
        def ping() -> str:
            return "pong"

    assert Mailer("a").send() == "a"
    assert Mailer("b").send() == "b"
    assert Mailer.ping() == "pong"
    with pytest.raises(RateLimitExceededError):
        Mailer("a").send()


def test_async_functions_wait_without_blocking_their_loop() -> None:
    """In the order in which they came."""
    order = []

    @limited(fixed_window(1, 40), key="{name}")
    async def call(name: str, number: int) -> int:
        order.append(number)
        return number

    async def main() -> list[int]:
        return await asyncio.gather(*(call("a", number) for number in range(4)))

    assert run(main()) == [0, 1, 2, 3]
    assert order == [0, 1, 2, 3]


def test_keys_and_costs_may_be_awaited_by_async_functions() -> None:
    async def tenant_of(user: str) -> str:
        await asyncio.sleep(0)
        return user[0]

    async def cost_of(user: str) -> int:
        return len(user)

    @limited("5/minute", key=tenant_of, cost=cost_of, timeout=0)
    async def call(user: str) -> None: ...

    run(call("abc"))
    run(call("ab"))
    with pytest.raises(RateLimitExceededError):
        run(call("a"))


def test_threads_wait_in_turn_until_the_timeout() -> None:
    """A wait that would be too long is not begun."""
    clock = ManualClock(NOW)
    done = threading.Event()

    @limited(fixed_window(1, 1_000), timeout=2, clock=clock)
    def call() -> None: ...

    call()

    def second() -> None:
        call()
        done.set()

    thread = threading.Thread(target=second)
    thread.start()
    deadline = time.monotonic() + 20
    while not done.is_set() and time.monotonic() < deadline:
        clock.advance(100)
        time.sleep(0.005)
    thread.join()
    assert done.is_set()

    @limited(fixed_window(1, 60_000), timeout=2, clock=clock)
    def slow() -> None: ...

    slow()
    with pytest.raises(RateLimitExceededError, match="not admitted within 2000 ms"):
        slow()


def test_functions_count_apart_unless_they_share_a_prefix_or_a_limiter() -> None:
    store = MemoryStore()

    @limited("1/minute", key="{user}", timeout=0, store=store)
    def one(user: str) -> None: ...

    @limited("2/minute", key="{user}", timeout=0, store=store)
    def two(user: str) -> None: ...

    assert calls_admitted(lambda: one("alice")) == 1
    assert calls_admitted(lambda: two("alice")) == 2

    mail = limited("3/minute", key="{user}", timeout=0, store=store, prefix="mail")
    third = mail(lambda user: user)
    fourth = mail(lambda user: user)
    third("alice")
    assert calls_admitted(lambda: fourth("alice")) == 2

    shared = rate_limit("3/minute")
    fifth = limited(shared, key="{user}", timeout=0)(lambda user: user)
    fifth("alice")
    assert shared.peek("alice").remaining == 2


def test_several_limits_are_one_decision() -> None:
    clock = ManualClock(NOW)
    limits = Limits(
        {
            "user": fixed_window(2, 60_000),
            "tenant": fixed_window(3, 60_000),
            "everybody": Limit(fixed_window(100, 60_000), keyless=True),
        },
        clock=clock,
    )

    @limited(limits, key={"user": "{user}", "tenant": lambda user, tenant: tenant}, timeout=0)
    def call(user: str, tenant: str) -> None: ...

    assert calls_admitted(lambda: call("alice", "acme")) == 2
    assert calls_admitted(lambda: call("bob", "acme")) == 1
    assert limits.peek({"user": "x", "tenant": "y"}).limits["everybody"].remaining == 97

    @limited({"short": "5/second", "long": "2/minute"}, timeout=0, clock=clock)
    async def other() -> None: ...

    assert calls_admitted(other) == 2


def test_a_slot_is_held_for_as_long_as_the_call_runs() -> None:
    """And given back however it ends."""
    pool = rate_limit(slots(1, ttl_ms=60_000))

    @limited(pool, key="a", timeout=0)
    def call(fail: bool) -> int:
        if fail:
            raise KeyError("no")
        return pool.peek("a").remaining

    @limited(pool, key="a", timeout=0)
    async def acall() -> int:
        with pytest.raises(RateLimitExceededError):
            call(False)
        return pool.peek("a").remaining

    assert call(False) == 0
    with pytest.raises(KeyError):
        call(True)
    assert run(acall()) == 0
    assert pool.peek("a").remaining == 1


def test_a_call_that_is_done_does_not_fail_with_the_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The slot runs out by itself."""
    store = GoneStore()
    pool = rate_limit(slots(1, ttl_ms=60_000), store=store)
    limit = limited(pool, key="a", timeout=0)

    @limit
    def call() -> str:
        store.is_gone = True
        return "done"

    @limit
    async def acall() -> str:
        return call.__wrapped__()  # type: ignore[attr-defined, no-any-return]

    def block() -> str:
        with limit:
            store.is_gone = True
        return "done"

    for work in (call, lambda: run(acall()), block):
        assert work() == "done"
        store.is_gone = False
        pool.reset("a")
    assert caplog.text.count("a slot could not be given back") == 3


def test_slots_that_a_call_does_not_ask_for_are_not_held() -> None:
    """An optional limit without a key is left out."""
    several = {"flight": Limit(slots(1), optional=True), "rate": "5/day"}

    @limited(several, key={"rate": "{user}"}, timeout=0)
    def call(user: str) -> str:
        return user

    assert calls_admitted(lambda: call("a")) == 5


def test_a_slot_is_renewed_while_the_call_runs() -> None:
    """It may take longer than the slot would be held for without; by a thread and by a task."""
    clock = ManualClock(0)
    pool = rate_limit(slots(1, ttl_ms=6_000), clock=clock, store=MemoryStore(clock=clock))
    deadline = time.monotonic() + 30

    def is_renewed(key: str) -> bool:
        assert time.monotonic() < deadline, "the slot was not renewed"
        return pool.peek(key).reset_at >= 8_000

    @limited(pool, key="thread")
    def call() -> None:
        while not is_renewed("thread"):
            time.sleep(0.02)

    @limited(pool, key="task")
    async def acall() -> None:
        clock.advance(2_000)
        while not is_renewed("task"):
            await asyncio.sleep(0.02)

    async def both() -> None:
        thread = asyncio.create_task(asyncio.to_thread(call))
        while pool.peek("thread").allowed:
            await asyncio.sleep(0.02)
        await asyncio.gather(thread, acall())

    run(both())
    assert [pool.peek(key).remaining for key in ("thread", "task")] == [1, 1]


def test_a_block_waits_by_plain_text_or_by_a_key_of_its_own() -> None:
    partner = limited("2/minute", key="partner", timeout=0)
    with partner, partner:
        pass
    with pytest.raises(RateLimitExceededError), partner:
        raise AssertionError("the block must not run")

    async def main() -> None:
        async with partner.on("somebody else") as decision:
            assert decision.remaining == 1
        with pytest.raises(RateLimitExceededError):
            async with partner:
                raise AssertionError("the block must not run")

    run(main())


def test_blocks_inside_each_other_give_back_their_own_slots() -> None:
    pool = rate_limit(slots(2, ttl_ms=60_000))
    places = limited(pool, key="a", timeout=0)
    with places:
        with places:
            assert pool.peek("a").remaining == 0
        assert pool.peek("a").remaining == 1
    assert pool.peek("a").remaining == 2

    async def worker() -> None:
        async with places:
            await asyncio.sleep(0.01)

    async def main() -> None:
        await asyncio.gather(worker(), worker())

    run(main())
    with pytest.raises(ValueError, match="no"), places:
        raise ValueError("no")
    assert pool.peek("a").remaining == 2


def test_processes_share_a_limit_through_a_store() -> None:
    """A URL is opened once and closed by the one who opened it."""
    prefix = new_key()
    ends = [
        limited(
            "3/minute",
            timeout=0,
            store=f"{url_of('valkey')}?timeout_ms={PATIENT_MS}",
            prefix=prefix,
        )
        for _ in range(2)
    ]
    first, second = [end(lambda: None) for end in ends]
    first()
    assert calls_admitted(second) == 2
    for end in ends:
        end.close()


def counting() -> Iterator[int]:
    yield 1


async def acounting() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: limited("ten a second"), "rate"),
        (lambda: limited(5), "strategy must be a rate"),  # type: ignore[arg-type]
        (lambda: limited("1/second", timeout=-1), "timeout must be None or a number of seconds"),
        (lambda: limited("1/second", cost=0), "cost must be"),
        (lambda: limited("1/second", key=7), "key must be a format"),  # type: ignore[arg-type]
        (lambda: limited("1/second", key=""), "must not be empty"),
        (lambda: limited("1/second", key="{user"), "is not a valid format string"),
        (lambda: limited("1/second", key="{}"), "a field without a name"),
        (lambda: limited("1/second", store="redsi://x"), "redis"),
        (
            lambda: limited(rate_limit("1/second"), prefix="x"),
            "prefix cannot be changed on an existing limiter",
        ),
        (lambda: limited("1/second", key="{usr}")(lambda user: None), "its parameters: user"),
        (lambda: limited("1/second", key="{1}")(lambda user: None), "is no parameter of"),
        (lambda: limited("1/second")(counting), "is a generator"),
        (lambda: limited("1/second")(acounting), "is a generator"),
        (lambda: limited("1/second")(int), "decorates functions"),
        (lambda: limited("1/second")(staticmethod(len)), "below @staticmethod"),  # type: ignore
        (lambda: limited("1/second", key=asyncio.sleep)(lambda x: x), "cannot be async functions"),
        (lambda: limited("1/second", key={"a": "b"})(lambda: 1), "only one limit"),
        (lambda: limited({"a": "1/second"}, key={"b": "x"})(lambda: 1), "key names 'b'"),
        (lambda: limited("1/second").__enter__(), "a block has no arguments"),
        (lambda: limited("1/second", key="{user}").__enter__(), "a block has no arguments"),
    ],
)
def test_bad_input_is_said_before_the_first_call(make: Any, said: str) -> None:
    with pytest.raises(ConfigInvalidError, match=said):
        make()
