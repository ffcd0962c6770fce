"""Laws of verdicts, over random mixtures of limits and calls, on stores of every kind: a shadow
changes no answer, and the `remaining` that a limit shows is what it admits next."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock import Limit, Limits, ManualClock, Store, Strategy, Verdict, rate_limit, unlimited
from penstock.budget import token_budget
from penstock.stores import open_store
from penstock.stores.memory import MemoryStore
from penstock.stores.redis import RedisStore
from tests.conformance.broken_stores import DictStore
from tests.servers import Valkey, require
from tests.stores.cas.backend import DictCasStore
from tests.stores.mixtures import START, STRATEGIES
from tests.support.effort import count

NewStore = Callable[[], Store]

STEPS_MS = (0, 0, 1, 3, 20, 90, 130, 400, 1_100, -50, -700)
COSTS = (0, 1, 1, 1, 2, 3)
PACED = tuple(name for name, strategy in STRATEGIES.items() if strategy.books_ahead)
# Denied whenever they have admitted a few, so that they differ from the limits beside them.
SHADOWS = {f"shadow-{name}": strategy for name, strategy in STRATEGIES.items()}


@pytest.fixture(
    scope="module", params=["memory", "in order", "compare-and-swap", "sqlite", "redis"]
)
def new_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewStore]:
    """Makes stores without any state."""
    with ExitStack() as stack:
        if request.param == "redis":
            require("valkey")
            url = stack.enter_context(Valkey()).url

        def make() -> Store:
            if request.param == "in order":
                return DictStore()
            if request.param == "compare-and-swap":
                return DictCasStore()
            if request.param == "sqlite":
                folder: Path = tmp_path_factory.mktemp("laws")
                store = open_store(f"sqlite:///{folder}/{uuid.uuid4().hex}?timeout_ms=20000")
            elif request.param == "redis":
                store = RedisStore.from_url(url, use_server_time=False, timeout_ms=20_000)
            else:
                return MemoryStore()
            stack.callback(store.close)
            return store

        yield make


def _limits(
    strategies: dict[str, Strategy], shadows: dict[str, Strategy], store: Store, clock: ManualClock
) -> Limits:
    declared: dict[str, Limit] = {
        name: Limit(strategy, optional=True) for name, strategy in strategies.items()
    }
    declared |= {
        name: Limit(strategy, optional=True, shadow=True) for name, strategy in shadows.items()
    }
    names = sorted(declared, key=lambda name: name.encode()[::-1])
    return Limits({name: declared[name] for name in names}, store=store, clock=clock, prefix=_new())


def _new() -> str:
    """A prefix of its own, since servers are shared."""
    return uuid.uuid4().hex


def _enforced(verdict: Verdict) -> dict[str, Any]:
    """All that a verdict says, except about shadows. The order of limits is another one."""
    return {
        "allowed": verdict.allowed,
        "limits": dict(sorted(verdict.enforced.items())),
        "violated": sorted(verdict.violated),
        "retry": verdict.retry_after_ms,
        "remaining": verdict.remaining,
    }


@pytest.mark.parametrize("seed", range(count(12, 150)))
def test_a_shadow_changes_no_answer(new_store: NewStore, seed: int) -> None:
    """The same calls, of every kind, with shadows beside the limits and without: the same verdicts
    and the same instants of bookings. Without any enforced limit the decision is that of
    `unlimited()`."""
    rng = random.Random(seed)
    clock = ManualClock(START + rng.randrange(1_000_000))
    names = rng.sample(list(STRATEGIES), 4)
    strategies = {name: STRATEGIES[name] for name in {*names, rng.choice(PACED)}}
    shadows = dict(rng.sample(list(SHADOWS.items()), 3))
    bare = _limits(strategies, {}, new_store(), clock)
    shadowed = _limits(strategies, shadows, new_store(), clock)
    open_charges: list[tuple[Any, Any]] = []
    seen = {"denied": 0, "shadowed": 0, "bare": 0, "booked": 0}
    for _ in range(60):
        clock.set(clock.now() + rng.choice(STEPS_MS))
        enforced = rng.sample(list(strategies), rng.randint(0, 3))
        also = rng.sample(list(shadows), rng.randint(1, 3))
        keys = {name: rng.choice("ab") for name in enforced}
        cost = {name: rng.choice(COSTS) for name in enforced}
        more = {**keys, **dict.fromkeys(also, "a")}
        costs = {**cost, **{name: rng.choice(COSTS) for name in also}}
        call = rng.choice(("check", "check", "peek", "reserve", "book", "end"))
        if call == "end" and open_charges:
            pair = open_charges.pop(rng.randrange(len(open_charges)))
            for charge in pair:
                charge.cancel()
            continue
        if call in ("reserve", "book"):
            wait = rng.choice((500, 5_000)) if call == "book" else 0
            charges = (
                bare.reserve(keys, cost, max_wait_ms=wait),
                shadowed.reserve(more, costs, max_wait_ms=wait),
            )
            if charges[0].allowed:
                assert charges[0].starts_at == charges[1].starts_at
                open_charges.append(charges)
                seen["booked"] += charges[0].starts_at > clock.now()
            told = charges[0].verdict, charges[1].verdict
        elif call == "peek":
            told = bare.peek(keys), shadowed.peek(more)
        else:
            told = bare.check(keys, cost), shadowed.check(more, costs)
        without, within = told
        assert without is not None
        assert within is not None
        assert _enforced(within) == _enforced(without)
        if not enforced:
            seen["bare"] += 1
            assert within.allowed
            assert within.binding == ""
            assert within.decision == unlimited().check(None, clock.now(), 1).result
        denied = {name for name in also if not within.limits[name].allowed}
        assert set(within.shadowed) == (denied if within.allowed else set())
        seen["denied"] += not within.allowed
        seen["shadowed"] += bool(within.shadowed)
    assert all(seen[kind] for kind in ("denied", "shadowed", "bare")), seen


@pytest.mark.parametrize("seed", range(count(25, 300)))
def test_shown_remaining_is_what_a_limit_admits_next(new_store: NewStore, seed: int) -> None:
    """After a denied request each limit that did not deny shows what is there, and so does a look
    at cost 0, which never denies: as many single units are admitted at that instant, and no
    more."""
    rng = random.Random(f"remaining {seed}")
    clock = ManualClock(START + rng.randrange(1_000_000))
    store = new_store()
    strategies = {name: STRATEGIES[name] for name in rng.sample(list(STRATEGIES), 4)}
    if rng.random() < 0.3:
        strategies["tokens"] = token_budget(6, 1_000)
    prefix = _new()
    limits = Limits(
        {n: Limit(s, shadow=rng.random() < 0.25) for n, s in strategies.items()},
        store=store,
        clock=clock,
        prefix=prefix,
    )
    keys = dict.fromkeys(strategies, "k")
    verdict = None
    for _ in range(rng.randint(1, 25)):
        clock.set(clock.now() + rng.choice(STEPS_MS))
        verdict = limits.check(keys, {name: rng.choice(COSTS) for name in strategies})
    look = limits.check(keys, 0)
    assert look.allowed
    assert all(look.decisions)
    assert all(told.retry_after_ms == 0 for told in look.decisions)
    if verdict is not None and not verdict.allowed:
        left = {name: told.remaining for name, told in look.limits.items()}
        assert {name: told.remaining for name, told in verdict.limits.items()} == left
    for name, strategy in strategies.items():
        limiter = rate_limit(strategy, store=_Bare(store), clock=clock, prefix=f"{prefix}:{name}")
        admitted = 0
        while limiter.check("k"):
            admitted += 1
        assert admitted == look.limits[name].remaining, (name, strategy)


class _Bare(Store):
    """The same store for a limiter of its own, which shares the keys of a `Limits`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def apply(self, key: str, transform: Any, now: int, cost: int) -> Any:
        return self._store.apply(key, transform, now, cost)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=repr)
def test_a_look_shows_an_exhausted_or_overdrawn_limit_and_never_denies(
    new_store: NewStore, strategy: Strategy
) -> None:
    """Beside another limit that denies, too; and a limit beside it is charged."""
    clock = ManualClock(START)
    limits = Limits(
        {"looked": strategy, "beside": Limit("1/day")},
        store=new_store(),
        clock=clock,
        prefix=_new(),
    )
    keys = {"looked": "k", "beside": "first"}
    charge = limits.reserve({**keys, "beside": "other"}, {"looked": 1, "beside": 1})
    charge.settle({"looked": strategy.limit + 2})
    look = limits.check(keys, {"looked": 0})
    assert look.allowed
    assert look.limits["looked"].remaining == 0
    assert look.limits["looked"].retry_after_ms == 0
    assert look.limits["beside"].remaining == 0
    denied = limits.check(keys, {"looked": 0})
    assert denied.violated == ("beside",)
    assert denied.limits["looked"] == look.limits["looked"]
    assert not limits.peek({**keys, "beside": "new"}).limits["looked"].allowed
