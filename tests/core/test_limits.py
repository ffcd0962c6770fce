"""Several limits, one decision: what `Limits` promises, on memory and on real servers."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Limit,
    Limits,
    ManualClock,
    MemoryStore,
    RateLimitExceededError,
    Store,
    Verdict,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window_log,
    token_bucket,
)
from tests.conformance.broken_stores import DictStore

START = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture(params=["memory", "in order"])
def store(request: pytest.FixtureRequest) -> Store:
    """A store that writes several keys at once, and one that has nothing but `apply`."""
    return MemoryStore() if request.param == "memory" else DictStore()


Make = Callable[..., Limits]


@pytest.fixture
def make(clock: ManualClock, store: Store) -> Iterator[Make]:
    made: list[Limits] = []

    def make(limits: Any = None, **options: Any) -> Limits:
        given = limits or {"user": fixed_window(3, 60_000), "tenant": fixed_window(5, 60_000)}
        made.append(Limits(given, store=store, clock=clock, **options))
        return made[-1]

    yield make
    for limits in made:
        limits.close()


ALICE = {"user": "alice", "tenant": "acme"}
BOB = {"user": "bob", "tenant": "acme"}


def test_a_request_is_charged_to_all_limits(make: Make) -> None:
    verdict = make().check(ALICE)
    assert verdict.allowed
    assert verdict
    assert {name: said.remaining for name, said in verdict.limits.items()} == {
        "user": 2,
        "tenant": 4,
    }
    assert verdict.binding == "user"
    assert verdict.decision == verdict.limits["user"]
    assert (verdict.violated, verdict.shadowed) == ((), ())


def test_a_denied_request_is_charged_nowhere(make: Make) -> None:
    limits = make()
    for _ in range(3):
        assert limits.check(ALICE)
    for _ in range(10):
        denied = limits.check(ALICE)
        assert not denied
        assert denied.violated == ("user",)
        assert denied.binding == "user"
        assert denied.retry_after_ms > 0
    assert limits.peek(BOB).limits["tenant"].remaining == 2
    assert limits.check(BOB)
    assert limits.check(BOB)
    assert limits.check(BOB).violated == ("tenant",)
    assert limits.peek({"user": "bob", "tenant": "other"}).limits["user"].remaining == 1


def test_the_longest_wait_binds_a_denial(make: Make) -> None:
    limits = make({"short": fixed_window(1, 1_000), "long": fixed_window(1, 60_000)})
    keys = {"short": "k", "long": "k"}
    assert limits.check(keys)
    denied = limits.check(keys)
    assert denied.violated == ("short", "long")
    assert denied.binding == "long"
    assert denied.retry_after_ms == denied.limits["long"].retry_after_ms


def test_a_shadow_counts_and_never_denies(make: Make) -> None:
    limits = make(
        {"user": fixed_window(5, 60_000), "new": Limit(fixed_window(2, 60_000), shadow=True)}
    )
    keys = {"user": "alice", "new": "alice"}
    verdicts = [limits.check(keys) for _ in range(6)]
    assert [bool(verdict) for verdict in verdicts] == [True] * 5 + [False]
    # The last one was denied anyway.
    assert [verdict.shadowed for verdict in verdicts] == [(), ()] + [("new",)] * 3 + [()]
    assert verdicts[-1].violated == ("user",)
    assert verdicts[0].binding == "user"


def test_a_shadow_is_not_charged_for_what_is_denied(make: Make) -> None:
    limits = make(
        {"new": Limit(fixed_window(9, 60_000), shadow=True), "user": fixed_window(1, 60_000)}
    )
    keys = {"user": "alice", "new": "alice"}
    for _ in range(4):
        limits.check(keys)
    assert limits.peek(keys).limits["new"].remaining == 8


def test_a_key_that_is_missing_is_an_error_unless_its_limit_is_optional(make: Make) -> None:
    limits = make({"user": fixed_window(3, 60_000), "team": Limit("5/minute", optional=True)})
    assert limits.check({"user": "alice"}).limits.keys() == {"user"}
    assert limits.check({"user": "alice", "team": "red"}).limits.keys() == {"user", "team"}
    with pytest.raises(ConfigInvalidError, match="'user' has no key"):
        limits.check({"team": "red"})


def test_a_keyless_limit_is_for_everybody(make: Make) -> None:
    limits = make(
        {"user": fixed_window(3, 60_000), "all": Limit(fixed_window(4, 60_000), keyless=True)}
    )
    for name in ("a", "b", "c", "d"):
        assert limits.check({"user": name})
    assert limits.check({"user": "e"}).violated == ("all",)
    with pytest.raises(ConfigInvalidError, match="takes no key"):
        limits.check({"user": "e", "all": "x"})


def test_costs_may_differ_by_limit(make: Make) -> None:
    limits = make({"requests": fixed_window(10, 60_000), "tokens": token_bucket(1_000, 10)})
    keys = {"requests": "k", "tokens": "k"}
    assert limits.check(keys, {"tokens": 700}).limits["tokens"].remaining == 300
    denied = limits.check(keys, {"tokens": 700})
    assert denied.violated == ("tokens",)
    assert limits.peek(keys).limits["requests"].remaining == 9
    looked = limits.check(keys, {"requests": 1, "tokens": 0})
    assert looked.limits["tokens"].remaining == 300
    assert limits.peek(keys).limits["requests"].remaining == 8


def test_what_is_wrong_is_said_and_charges_nothing(make: Make) -> None:
    limits = make()
    for keys, cost, said in [
        ({"user": "alice"}, 1, "'tenant' has no key"),
        ({**ALICE, "planet": "x"}, 1, "no limit 'planet'"),
        ({"user": "", "tenant": "acme"}, 1, "the limit 'user': key must not be empty"),
        ({"user": "x" * 5_000, "tenant": "acme"}, 1, "the limit 'user': key must be at most 4096"),
        ({"user": "alice", "tenant": 7}, 1, "the limit 'tenant': key must be a string"),
        ({"user": "alice", "tenant": ""}, {"user": 2}, "the limit 'tenant': key must not be empty"),
        (ALICE, {"tokens": 1}, "'tokens', which is not there"),
        (ALICE, {"user": -1}, "cost of 'user'"),
        (ALICE, {"user": 1.5}, "cost of 'user'"),
        (ALICE, -1, "cost must be"),
        (ALICE, True, "cost must be"),
        ("alice", 1, "must be a mapping such as"),
    ]:
        with pytest.raises(ConfigInvalidError, match=said):
            limits.check(keys, cost)  # type: ignore[arg-type]
    assert {said.remaining for said in limits.peek(ALICE).limits.values()} == {3, 5}


def test_every_call_refuses_what_is_wrong_and_charges_nothing(make: Make) -> None:
    """Sync and async, and none of them waits for what it cannot get."""
    limits = make()
    calls: list[Any] = [limits.check, limits.reserve, limits.forecast, limits.acquire]
    if limits.store.answers_at_once:
        awaited = [limits.acheck, limits.areserve, limits.aforecast, limits.aacquire]
        calls += [lambda *given, ask=ask: asyncio.run(ask(*given)) for ask in awaited]
    for keys, cost, said in [
        ({"user": "alice"}, 1, "'tenant' has no key"),
        ({**ALICE, "planet": "x"}, 1, "no limit 'planet'"),
        ({"user": "", "tenant": "acme"}, 1, "the limit 'user': key must not be empty"),
        ({"user": "alice", "tenant": "x" * 5_000}, 1, "the limit 'tenant': key must be at most"),
        ({"user": "alice", "tenant": "\ud800"}, 1, "the limit 'tenant': key"),
        (ALICE, {"tokens": 1}, "'tokens', which is not there"),
        (ALICE, {"user": True}, "cost of 'user'"),
        (ALICE, 2**53, "cost must be"),
        (ALICE, float("nan"), "cost must be"),
        (None, 1, "must be a mapping such as"),
    ]:
        for call in calls:
            with pytest.raises(ConfigInvalidError, match=said):
                call(keys, cost)
    assert {said.remaining for said in limits.peek(ALICE).limits.values()} == {3, 5}


def test_what_was_never_charged_is_not_given_back(make: Make, clock: ManualClock) -> None:
    """Neither by the charge of a denied check, nor after a settlement that was refused as wrong."""
    limits = make()
    charge = limits.reserve(ALICE, 3)
    with pytest.raises(ConfigInvalidError, match="which was not charged"):
        charge.settle({"planet": 1})
    with pytest.raises(ConfigInvalidError, match="actual cost of 'user'"):
        charge.settle({"tenant": 0, "user": -1})
    denied = limits.check(ALICE)
    assert not denied
    late = limits.charge_for(ALICE, 1, denied, clock.now())
    assert not late.cancel()
    with pytest.raises(ConfigInvalidError, match="was denied"):
        late.settle(0)
    assert limits.peek(ALICE).limits["user"].remaining == 0
    assert charge.settle(1)
    assert limits.peek(ALICE).limits["user"].remaining == 2


def test_a_key_to_forget_or_to_pause_is_refused_with_the_limit_it_is_for(make: Make) -> None:
    limits = make()
    for ask in (limits.reset, lambda keys: limits.pause(keys, 5)):
        with pytest.raises(ConfigInvalidError, match="the limit 'tenant': key must not be empty"):
            ask({"user": "alice", "tenant": ""})


def test_a_charge_is_made_only_of_the_verdict_on_its_limits(clock: ManualClock) -> None:
    limits = Limits({"user": "5/second", "group": Limit("9/second", optional=True)}, clock=clock)
    both = limits.check({"user": "a", "group": "b"})
    for verdict, asked_at, said in [
        (
            both,
            clock.now(),
            "the verdict is about the limits user, group, but these keys are for the limits user",
        ),
        (both.decision, clock.now(), "verdict must be the Verdict that check"),
        (limits.check({"user": "a"}), "now", "asked_at must be an integer"),
    ]:
        with pytest.raises(ConfigInvalidError, match=said):
            limits.charge_for({"user": "a"}, 1, verdict, asked_at)  # type: ignore[arg-type]
    assert limits.charge_for({"user": "a", "group": "b"}, 1, both, clock.now()).cancel()
    assert limits.peek({"user": "a"}).remaining == 4


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, "must be a mapping of names"),
        ([("user", "1/second")], "must be a mapping of names"),
        ({"a:b": "1/second"}, "name of a limit"),
        ({"": "1/second"}, "name of a limit"),
        ({"user": 7}, "a limit must be a rate"),
        ({"user": "often"}, "a rate is a whole count"),
    ],
)
def test_limits_that_cannot_be_are_refused(limits: Any, said: str) -> None:
    with pytest.raises(ConfigInvalidError, match=said):
        Limits(limits)


def test_a_limit_for_everybody_cannot_be_optional() -> None:
    with pytest.raises(ConfigInvalidError, match="cannot be optional"):
        Limit("1/second", keyless=True, optional=True)
    with pytest.raises(ConfigInvalidError, match="shadow must be True or False"):
        Limit("1/second", shadow=1)  # type: ignore[arg-type]


def test_it_says_whether_anybody_can_get_in_between() -> None:
    assert Limits({"user": "1/second"}).atomic
    in_order = DictStore()
    assert not Limits({"user": "1/second"}, store=in_order).atomic
    with pytest.raises(ConfigInvalidError, match="require_atomic"):
        Limits({"user": "2/second"}, store=in_order, prefix="x", require_atomic=True)


def test_keys_are_named_by_prefix_limit_and_key(clock: ManualClock) -> None:
    store = DictStore()
    limits = Limits(
        {"user": "5/second", "all": Limit("9/second", keyless=True)},
        store=store,
        clock=clock,
        prefix="api",
    )
    limits.check({"user": "alice"})
    assert store.states.keys() == {"api:user:alice", "api:all"}


def test_a_limit_and_a_limiter_of_the_same_keys_must_mean_the_same(clock: ManualClock) -> None:
    store = MemoryStore()
    limits = Limits({"user": fixed_window(3, 1_000)}, store=store, clock=clock)
    with pytest.raises(ConfigInvalidError, match="same keys"):
        rate_limit(fixed_window(4, 1_000), store=store, clock=clock, prefix="user")
    limiter = rate_limit(fixed_window(3, 1_000), store=store, clock=clock, prefix="user")
    limits.check({"user": "alice"})
    assert limiter.peek("alice").remaining == 2


def test_a_forecast_is_that_of_the_tightest(make: Make) -> None:
    limits = make()
    limits.check(ALICE)
    forecast = limits.forecast(ALICE)
    assert forecast.spendable_now == 2
    assert limits.forecast(ALICE, {"tenant": 3}).spendable_now == 1
    assert forecast == asyncio.run(limits.aforecast(ALICE)) if limits.atomic else True


def test_a_reset_forgets_what_is_named_and_nothing_else(make: Make) -> None:
    limits = make()
    for _ in range(3):
        limits.check(ALICE)
    limits.reset({"user": "alice"})
    assert limits.peek(ALICE).limits["user"].remaining == 3
    assert limits.peek(ALICE).limits["tenant"].remaining == 2
    with pytest.raises(ConfigInvalidError, match="no limit 'usr'"):
        limits.reset({"usr": "alice"})


def test_it_can_be_pickled_where_its_store_can(tmp_path: Any) -> None:
    limits = Limits({"user": "5/hour"}, store=f"sqlite:///{tmp_path}/limits.db", prefix="p")
    limits.check({"user": "alice"})
    again = pickle.loads(pickle.dumps(limits))
    assert again.peek({"user": "alice"}).remaining == 4
    again.close()
    limits.close()


def test_a_verdict_is_a_value() -> None:
    limits = Limits({"user": fixed_window(3, 60_000)}, clock=ManualClock(START))
    first = limits.check({"user": "a"})
    assert first == limits.check({"user": "b"})
    assert hash(first) == hash(limits.check({"user": "c"}))
    assert first != limits.check({"user": "a"})
    assert pickle.loads(pickle.dumps(first)) == first
    assert isinstance(first, Verdict)
    with pytest.raises(AttributeError):
        first.allowed = False  # type: ignore[misc]
    assert "binding='user'" in repr(first)


def test_the_compiled_path_answers_as_the_long_one() -> None:
    """Random calls, some of which it has to hand over: by cost, by key, by a key named twice."""
    import random

    rng = random.Random(7)
    shape = {
        "a": gcra(5, 1_000),
        "b": Limit(sliding_window_log(4, 700), shadow=True),
        "c": Limit(token_bucket(6, 3), keyless=True),
        "d": fixed_window(7, 900),
    }
    clocks = ManualClock(START), ManualClock(START)
    fast = Limits(shape, clock=clocks[0])
    plain = Limits(shape, clock=clocks[1], store=DictStore())
    for _ in range(3_000):
        for clock in clocks:
            clock.set(
                clocks[0].now() if clock is clocks[1] else clock.now() + rng.choice((0, 9, 300))
            )
        clocks[1].set(clocks[0].now())
        keys = {name: rng.choice(("x", "y", "é", "z" * 150)) for name in "abd"}
        cost: Any = rng.choice((1, 1, 1, 2, 0, {"a": 2}))
        assert fast.check(keys, cost) == plain.check(keys, cost)


def test_threads_admit_exactly_the_tightest_limit(make: Make) -> None:
    """The looser limit is charged for what was admitted and for nothing else."""
    limits = make({"loose": fixed_window(500, 10**9), "tight": fixed_window(137, 10**9)})
    keys = {"loose": "k", "tight": "k"}
    admitted: list[bool] = []

    def ask() -> None:
        for _ in range(60):
            admitted.append(limits.check(keys).allowed)  # noqa: PERF401

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 137 if limits.atomic else sum(admitted) <= 137
    said = limits.peek(keys).limits
    assert 500 - said["loose"].remaining == 137 - said["tight"].remaining == sum(admitted)


def test_acquire_waits_until_all_admit_and_charges_nothing_meanwhile(clock: ManualClock) -> None:
    limits = Limits(
        {"user": fixed_window(1, 1_000), "tenant": fixed_window(2, 60_000)}, clock=clock
    )
    assert limits.acquire(ALICE, timeout=0)
    told: list[Verdict] = []
    thread = threading.Thread(target=lambda: told.append(limits.acquire(ALICE)))
    thread.start()
    for _ in range(20):
        assert limits.peek(ALICE).limits["tenant"].remaining == 1
    for _ in range(3):
        # Once more where it was denied before the clock moved, and began to wait after.
        clock.advance(1_000)
        thread.join(10)
        if told:
            break
    assert [bool(verdict) for verdict in told] == [True]
    with pytest.raises(RateLimitExceededError) as refused:
        limits.acquire(BOB, timeout=5)
    assert refused.value.decision.retry_after_ms > 5_000
    with pytest.raises(ConfigInvalidError, match="can never be admitted by 'user'"):
        limits.acquire(ALICE, 2)


def test_tasks_are_served_in_the_order_of_their_coming(clock: ManualClock) -> None:
    limits = Limits({"user": gcra(1, 100), "tenant": gcra(2, 100)}, clock=clock)

    async def main() -> list[int]:
        order: list[int] = []

        async def one(number: int) -> None:
            await limits.aacquire(ALICE)
            order.append(number)

        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(0)
        for _ in range(100):
            clock.advance(100)
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(main()) == list(range(6))


def test_a_pause_holds_what_is_named(make: Make, clock: ManualClock) -> None:
    limits = make({"user": gcra(5, 1_000), "provider": Limit(gcra(5, 1_000), keyless=True)})
    limits.pause({"provider": None}, clock.now() + 3_000)
    denied = limits.check({"user": "alice"})
    assert denied.violated == ("provider",)
    assert denied.retry_after_ms == 3_000
    assert limits.peek({"user": "alice"}).limits["user"].remaining == 5
    clock.advance(3_000)
    assert limits.check({"user": "alice"})
