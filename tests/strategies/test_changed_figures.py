"""A limit whose figures change goes on with the state it finds, by three laws.

A policy file may change figures at any time, and plans give different ones to requests on the same
key. Raising a limit lengthens no wait; lowering it admits no more at once than the new limit; and
alternating between two sets of figures admits no more than the larger of them. A pause holds under
all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Decision,
    ManualClock,
    MemoryStore,
    Store,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window_log,
    token_bucket,
)
from penstock.core._transform import (
    booking,
    charging,
    checking,
    forecasting,
    pausing,
    peeking,
    refunding,
)
from penstock.stores import open_store
from penstock.stores.memory._table import Table
from tests.stores.postgres import live as postgres
from tests.stores.redis.live import open_empty
from tests.support.effort import count
from tests.support.helpers import make_store

from .changes import (
    MAKERS,
    NOW,
    PACED,
    SPAN_MS,
    ChangingKey,
    assert_never_more_than,
    draw_figures,
    draw_pair,
)

GAPS = (0, 0, 1, 17, 200, 1_500, 3_000, 11_000)
KEYS = {"native": 60, "interpreted": 30, "valkey": 12, "sqlite": 8, "postgres": 5}


class Backend:
    """A store, or for keys in memory one for each: their instants begin anew."""

    def __init__(self, name: str, shared: Store | None) -> None:
        self._name = name
        self._shared = shared
        self._keys = count(KEYS[name], 10 * KEYS[name])

    def key(self, kind: str) -> ChangingKey:
        return ChangingKey(make_store(self._name) if self._shared is None else self._shared, kind)

    def keys(self, kind: str, seed: str) -> Iterator[tuple[ChangingKey, random.Random]]:
        for number in range(self._keys):
            yield self.key(kind), random.Random(f"{seed}/{kind}/{number}")


@pytest.fixture(scope="module", params=KEYS)
def backend(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Backend]:
    makers: dict[str, Callable[[], Store]] = {
        "valkey": lambda: open_empty("valkey"),
        "sqlite": lambda: open_store(f"sqlite:///{tmp_path_factory.mktemp('db')}/limits.db"),
        "postgres": postgres.open_empty,
    }
    shared = makers[request.param]() if request.param in makers else None
    yield Backend(request.param, shared)
    if shared is not None:
        shared.close()


def use(key: ChangingKey, figures: tuple[int, int], rng: random.Random) -> None:
    """Some requests, and perhaps a debt."""
    for _ in range(rng.randrange(1, 15)):
        key.check(figures, rng.choice((1, 1, 2, figures[0])))
        key.now += rng.choice(GAPS)
    if rng.random() < 0.3:
        key.apply(charging(key.strategy(figures)), rng.choice((1, 5, figures[0])))
    while rng.random() < 0.5 and key.check(figures).allowed:
        pass


every_kind = pytest.mark.parametrize("kind", MAKERS)


@every_kind
def test_raising_a_limit_lengthens_no_wait(backend: Backend, kind: str) -> None:
    for key, rng in backend.keys(kind, "raised"):
        small, large = draw_pair(rng)
        use(key, small, rng)
        for cost in {1, rng.randint(1, small[0]), small[0]}:
            at = key.admitted_at(small, cost)
            assert key.would_admit(large, cost, at), (small, large, cost, at - key.now)
            # A caller that the new figures told to wait has not been told more than that.
            assert key.admitted_at(large, cost) <= at


@every_kind
def test_lowering_a_limit_admits_no_more_at_once_than_the_new_limit(
    backend: Backend, kind: str
) -> None:
    for key, rng in backend.keys(kind, "lowered"):
        small, large = draw_pair(rng)
        use(key, large, rng)
        assert key.admitted_at_once(small, rng) <= small[0]


@every_kind
def test_alternating_figures_admit_no_more_than_the_larger_ones(
    backend: Backend, kind: str
) -> None:
    """Also if neither is larger: then no more than the larger of each of the two figures."""
    for key, rng in backend.keys(kind, "alternating"):
        plans = draw_pair(rng) if rng.random() < 0.7 else (draw_figures(rng), draw_figures(rng))
        largest = max(p[0] for p in plans), max(p[1] for p in plans)
        admitted = []
        for _ in range(40):
            figures = rng.choice(plans)
            cost = rng.choice((1, 1, 2, figures[0]))
            while key.check(figures, cost).allowed:
                admitted.append((key.now, cost))
                if rng.random() < 0.3:
                    break
            key.now += rng.choice(GAPS)
        assert_never_more_than(kind, largest, admitted)


@pytest.mark.parametrize("kind", PACED)
def test_a_caller_that_obeys_a_wait_is_admitted_whatever_the_figures_were_before(
    backend: Backend, kind: str
) -> None:
    """A denial writes nothing, so the state keeps its figures while the caller waits. The one
    millisecond more is that of the roundings of a bucket."""
    waited, spare = 0, 1 if kind == "token_bucket" else 0
    for key, rng in backend.keys(kind, "obeyed"):
        before, after = draw_figures(rng), draw_figures(rng)
        use(key, before, rng)
        if rng.random() < 0.2:
            key.apply(pausing(key.strategy(before), key.now + rng.choice((1, 800, 20_000))))
        cost = rng.choice((1, 1, rng.randint(1, after[0]), after[0]))
        decision = key.check(after, cost)
        if not decision.allowed:
            waited += 1
            at = key.now + decision.retry_after_ms + spare
            assert key.would_admit(after, cost, at), (before, after, cost, decision)
    assert waited


@pytest.mark.parametrize("kind", PACED)
def test_a_forecast_is_true_whatever_the_figures_were_before(backend: Backend, kind: str) -> None:
    for key, rng in backend.keys(kind, "forecast"):
        before, after = draw_figures(rng), draw_figures(rng)
        use(key, before, rng)
        strategy = key.strategy(after)
        left, told = key.apply(peeking(strategy)).remaining, key.apply(forecasting(strategy))
        assert told.spendable_now == left
        if left < strategy.limit:
            key.now = told.next_replenish_at
            assert key.apply(peeking(strategy)).remaining > left, (before, after, told)
        key.now = told.full_at
        assert key.apply(peeking(strategy)).remaining == strategy.limit, (before, after, told)


@every_kind
def test_a_pause_holds_under_all_figures(backend: Backend, kind: str) -> None:
    """Whatever is given back, settled or paused again meanwhile, under whatever figures."""
    for key, rng in backend.keys(kind, "paused"):
        charged = []
        for _ in range(rng.randrange(8)):
            figures, cost = draw_figures(rng), rng.choice((1, 2))
            strategy = key.strategy(figures)
            decision = key.check(figures, cost)
            if decision.allowed:
                charged.append((strategy, cost, strategy.counted_at(decision, key.now)))
            key.now += rng.choice(GAPS)
        until = key.now + rng.choice((1, 90, 2_500, 14_000, 100_000))
        key.apply(pausing(key.strategy(draw_figures(rng)), until))
        if rng.random() < 0.3:
            key.apply(pausing(key.strategy(draw_figures(rng)), key.now + rng.choice((5, 2_000))))
        while key.now < until:
            strategy = key.strategy(draw_figures(rng))
            assert not key.check(draw_figures(rng)).allowed
            if charged and rng.random() < 0.5:
                by, cost, charged_at = charged.pop()
                key.apply(refunding(by, charged_at), cost)
            elif rng.random() < 0.2:
                key.apply(charging(strategy), 1)
            assert not key.check(draw_figures(rng)).allowed
            assert not key.would_admit(draw_figures(rng), 1, until - 1)
            key.now += rng.choice((1, 50, 700, 5_000))


@pytest.mark.parametrize("kind", PACED)
def test_nothing_is_admitted_before_what_was_booked_under_other_figures(
    backend: Backend, kind: str
) -> None:
    """It starts at the instant that it was given, whether a pause or earlier requests made it wait,
    but for the millisecond of a bucket."""
    spare = 1 if kind == "token_bucket" else 0
    for key, rng in backend.keys(kind, "booked"):
        before = draw_figures(rng)
        strategy = key.strategy(before)
        if rng.random() < 0.5:
            key.apply(pausing(strategy, key.now + rng.choice((1, 800, 20_000))))
        else:
            key.check(before, before[0])
        booked = key.apply(booking(strategy, 10**9), rng.randint(1, before[0]))
        latest = key.now + booked.delay_ms - 1 - spare
        for at in {key.now, rng.randint(key.now, latest), latest}:
            assert not key.would_admit(draw_figures(rng), 1, at), (before, booked, at - key.now)


def test_a_debt_takes_as_long_under_a_faster_pace_as_under_larger_figures() -> None:
    store = MemoryStore()
    before = token_bucket(5, 20)
    store.apply("k", charging(before), NOW, 10)
    assert store.apply("k", peeking(before), NOW, 1).retry_after_ms == 300
    assert store.apply("k", peeking(token_bucket(5, 100)), NOW, 1).retry_after_ms == 260
    assert store.apply("k", peeking(token_bucket(30, 120)), NOW, 1).retry_after_ms == 259


@every_kind
def test_after_a_pause_service_goes_on_under_all_figures(backend: Backend, kind: str) -> None:
    """Within a window, or the time that one unit takes under the new figures."""
    for key, rng in backend.keys(kind, "resumed"):
        before, after = draw_figures(rng), draw_figures(rng)
        until = key.now + rng.choice((1, 2_500, 100_000))
        key.apply(pausing(key.strategy(before), until))
        longest = 2 * (key.strategy(after).window_ms or 1)
        assert key.would_admit(after, 1, until + longest + refilled(kind, before)), (before, after)


def refilled(kind: str, figures: tuple[int, int]) -> int:
    """After a pause a bucket is empty, and nothing tells it from another that is: it takes no
    longer than it would have under the figures that it was paused with."""
    return figures[0] * SPAN_MS // figures[1] + 1 if kind == "token_bucket" else 0


@pytest.mark.parametrize("kind", PACED)
def test_a_refund_releases_the_share_that_was_taken(backend: Backend, kind: str) -> None:
    """60 units of 60, lowered to 6: cancelling 6 of the 60 frees less than one of the 6."""
    key = backend.key(kind)
    large, small = (60, 60), (6, 6)
    assert key.check(large, 60).allowed
    assert not key.check(small).allowed
    key.apply(refunding(key.strategy(large), key.now), 6)
    assert not key.check(small).allowed
    key.apply(refunding(key.strategy(large), key.now), 4)
    assert key.check(small).allowed
    assert not key.check(small).allowed


@pytest.mark.parametrize("kind", PACED)
def test_refunds_under_changing_figures_leave_no_more_than_the_limit(
    backend: Backend, kind: str
) -> None:
    """Each charge is given back by its own figures, and what stays charged is never more than the
    larger figures admit at once."""
    for key, rng in backend.keys(kind, "refunds"):
        plans = draw_pair(rng)
        open_charges: list[tuple[Strategy, int]] = []
        for _ in range(30):
            figures = rng.choice(plans)
            strategy, cost = key.strategy(figures), rng.choice((1, 2, figures[0]))
            if open_charges and rng.random() < 0.4:
                by, units = open_charges.pop(rng.randrange(len(open_charges)))
                key.apply(refunding(by, key.now), units)
            elif key.apply(checking(strategy), cost).allowed:
                open_charges.append((strategy, cost))
            assert sum(units for _, units in open_charges) <= plans[1][0]


def draw_operation(key: ChangingKey, rng: random.Random) -> tuple[Any, int]:
    strategy = key.strategy(draw_figures(rng))
    cost = rng.choice((1, 1, 2, 30))
    makers: list[Callable[[], Any]] = [
        *[lambda: checking(strategy)] * 8,
        lambda: peeking(strategy),
        lambda: forecasting(strategy),
        lambda: charging(strategy),
        lambda: refunding(strategy, key.now - rng.choice((0, 0, 200, 3_000))),
        lambda: pausing(strategy, key.now + rng.choice((1, 800, 20_000))),
    ]
    if strategy.books_ahead:
        makers.append(lambda: booking(strategy, rng.choice((1, 2_000, 50_000))))
    return rng.choice(makers)(), cost


@every_kind
def test_every_store_reads_a_state_of_other_figures_as_the_oracle_does(
    backend: Backend, kind: str
) -> None:
    """To the bit, for every operation, with a clock that goes back now and then."""
    for key, rng in backend.keys(kind, "agreeing"):
        oracle = Table(None, None, evict=True)
        for _ in range(40):
            transform, cost = draw_operation(key, rng)
            wanted = oracle.apply(key.name, transform, key.now, cost)
            assert key.apply(transform, cost) == wanted, (transform, key.now)
            key.now += rng.choice((0, 1, 200, 3_000, 11_000, -150))


def test_an_exhausted_key_is_served_at_the_new_pace_after_an_upgrade() -> None:
    """With another burst, too: it waited for 48 seconds once."""
    store = MemoryStore()
    for _ in range(100):
        assert store.apply("k", checking(gcra(100, 60_000)), NOW, 1).allowed
    denied = store.apply("k", checking(gcra(1_000, 60_000, burst=200)), NOW, 1)
    assert denied == Decision(False, 200, 0, NOW + 12_000, 60)


def test_three_plans_of_one_period_forget_nothing_in_a_circle() -> None:
    """With the default burst all conversions are shares, so their order does not matter."""
    store, strategies = MemoryStore(), [gcra(limit, 60_000) for limit in (7, 60, 1_000)]
    transforms = [checking(strategy) for strategy in strategies]
    assert store.apply("k", transforms[2], NOW, 1_000).allowed
    for transform in transforms * 20:
        assert not store.apply("k", transform, NOW, 1).allowed


@pytest.mark.parametrize(
    "make", [lambda n: gcra(n, 60_000), lambda n: token_bucket(n, n / 60)], ids=PACED
)
def test_a_limiter_with_other_figures_on_the_same_file_converts(
    tmp_path: Path, make: Callable[[int], Strategy]
) -> None:
    """Two processes of one program, the second of which was configured anew."""
    clock, url = ManualClock(NOW), f"sqlite:///{tmp_path}/limits.db"
    before = rate_limit(make(60), store=open_store(url), clock=clock)
    after = rate_limit(make(6), store=open_store(url), clock=clock)
    charge = before.reserve("k", 60)
    assert charge.allowed
    assert not after.check("k").allowed
    charge.settle(50)
    assert after.check("k").allowed
    assert not after.check("k").allowed
    before.store.close()
    after.store.close()


def test_a_record_without_figures_is_read_as_one_of_the_own_figures(tmp_path: Path) -> None:
    """As earlier versions wrote them."""
    from penstock.stores.record import pack, restore

    for strategy in (gcra(5, 1_000), token_bucket(5, 1)):
        state = strategy.check(None, NOW, 3).state
        kept = restore(pack(strategy.name, state, NOW + 9), "k", checking(strategy), NOW)
        assert kept[0] == state or list(kept[0]) == list(state)
        assert kept[1] == strategy.figures


@pytest.mark.parametrize(
    "figures",
    [
        *("5,1", "[5],1", "[5,0],1", "[5,-1],1", "[5,true],1", '["a",1],1', "[1e999,1],1"),
        *("[[1],1],1", "[5,1]", "[5,1],-1", "[5,1],1.5", "[5,1],null", "[5,1],1,1"),
    ],
)
def test_a_record_with_bad_figures_is_an_error(figures: str) -> None:
    from penstock import ConfigInvalidError
    from penstock.stores.record import restore

    text = f'{{"v":1,"strategy":"gcra","expires_at":{NOW + 9},"state":[{NOW}.5,{figures}]}}'
    with pytest.raises(ConfigInvalidError, match="holds the state of something else"):
        restore(text, "k", checking(gcra(5, 1_000)), NOW)


def test_a_strategy_that_keeps_figures_is_another_form_of_its_state() -> None:
    """Programs that share raw states in Redis do not meet it by accident."""
    plain, kept = gcra(5, 1_000), gcra(5, 1_000).keeping_figures()
    assert plain.state_form != kept.state_form
    assert kept.keeping_figures() is kept
    assert repr(kept) == repr(plain)
    for windowed in (fixed_window(5, 1_000), sliding_window_log(5, SPAN_MS)):
        assert windowed.keeping_figures() is windowed
