"""Plans, overrides and reloads change figures while keys have state: the laws of changed figures,
through a service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock, MemoryStore
from penstock.config import parse_policies
from penstock.config._changes import changes_between
from penstock.service import Service, build_service
from penstock.service._judging import Judgement
from penstock.stores import open_store
from tests.service.every_store import url_of
from tests.stores.redis.live import new_key
from tests.strategies.changes import NOW, assert_never_more_than
from tests.support.effort import count

SPAN = "10s"
KINDS = {
    "gcra": "strategy: gcra, period: 10s, limit: {rate}, burst: {burst}",
    "token_bucket": "strategy: tokenBucket, capacity: {burst}, refillPerSec: {per_sec}",
    "fixed_window": "strategy: fixedWindow, window: 10s, limit: {burst}",
    "sliding_window": "strategy: slidingWindow, window: 10s, limit: {burst}, buckets: 7",
    "sliding_window_log": "strategy: slidingWindowLog, window: 10s, limit: {burst}",
    "calendar_quota": "strategy: calendarQuota, period: hour, limit: {burst}",
}
FIGURES = {
    "gcra": "limit: {rate}, burst: {burst}",
    "token_bucket": "capacity: {burst}, refillPerSec: {per_sec}",
}
Figures = tuple[int, int]


def given(template: str, figures: Figures) -> str:
    burst, rate = figures
    return template.format(burst=burst, rate=rate, per_sec=rate / 10)


def file_of(kind: str, prefix: str, base: Figures, pro: Figures, vip: Figures) -> str:
    """A limit with a plan `pro`, and figures of its own for the user `vip`."""
    other = FIGURES.get(kind, "limit: {burst}")
    return f"""
version: 1
defaults: {{prefix: "{prefix}"}}
limiters:
  api:
    limits:
      user: {{by: user, {given(KINDS[kind], base)}}}
    plans:
      pro: {{user: {{{given(other, pro)}}}}}
    overrides:
      user: {{vip: {{{given(other, vip)}}}}}
"""


class Limited:
    """A service whose policy `api` has such figures, on any store."""

    def __init__(self, service: Service, clock: ManualClock, kind: str, prefix: str) -> None:
        self.service = service
        self.clock = clock
        self._kind = kind
        self._prefix = prefix

    def reload(self, base: Figures, pro: Figures, vip: Figures) -> None:
        text = file_of(self._kind, self._prefix, base, pro, vip)
        self.service.apply(parse_policies(text, "p.yaml"))

    async def check(self, plan: str | None, cost: int = 1, user: str = "vip") -> Any:
        attributes = {"user": user} if plan is None else {"user": user, "plan": plan}
        asked = self.service.judge("api", attributes, cost)
        judged = asked if isinstance(asked, Judgement) else await asked()
        return judged.verdict.decision


@asynccontextmanager
async def limited(backend: str, kind: str, folder: Path) -> AsyncIterator[Limited]:
    clock, prefix = ManualClock(NOW), new_key()
    store: Any = MemoryStore(clock=clock)
    if backend != "memory":
        url = url_of(backend, folder)
        store = open_store(url, use_server_time=False) if backend == "valkey" else open_store(url)
    file = parse_policies(file_of(kind, prefix, (5, 5), (5, 5), (5, 5)), "p.yaml")
    service = build_service(file, store=store, clock=clock)
    await service.start()
    try:
        yield Limited(service, clock, kind, prefix)
    finally:
        await service.aclose()


every_kind = pytest.mark.parametrize("kind", KINDS)
backends = pytest.mark.parametrize("backend", ["memory", "valkey", "sqlite", "postgresql"])


def run(backend: str, kind: str, folder: Path, body: Callable[[Limited], Awaitable[None]]) -> None:
    async def main() -> None:
        async with limited(backend, kind, folder) as world:
            await body(world)

    asyncio.run(main())


@backends
@every_kind
def test_plans_and_reloads_admit_no_more_than_the_largest_figures(
    backend: str, kind: str, tmp_path: Path
) -> None:
    """One key, asked with and without a plan while the file changes between two sets of figures."""
    rng = random.Random(f"service/{kind}")

    async def body(world: Limited) -> None:
        for number in range(count(3, 30)):
            burst, rate = sorted(rng.sample((1, 3, 10, 40), 2)), sorted(rng.sample((1, 7, 50), 2))
            small, large = (burst[0], rate[0]), (burst[1], rate[1])
            admitted = []
            for step in range(40):
                if not step or rng.random() < 0.3:
                    world.reload(*[rng.choice((small, large)) for _ in range(3)])
                cost = rng.choice((1, 1, small[0]))
                plan = rng.choice((None, "pro"))
                while (await world.check(plan, cost, user=f"u{number}")).allowed:
                    admitted.append((world.clock.now(), cost))
                world.clock.advance(rng.choice((0, 1, 200, 3_000, 11_000)))
            assert_never_more_than(kind, large, admitted)

    run(backend, kind, tmp_path, body)


@backends
@pytest.mark.parametrize("kind", FIGURES)
def test_after_an_upgrade_one_wait_is_enough(backend: str, kind: str, tmp_path: Path) -> None:
    """Three at once, one a second; ten a second under the plan."""

    async def body(world: Limited) -> None:
        world.reload((3, 10), (3, 100), (5, 5))
        assert (await world.check(None, 3, user="u")).allowed
        assert (await world.check("pro", user="u")).retry_after_ms == 100
        world.clock.advance(40)
        assert (await world.check("pro", user="u")).retry_after_ms == 60
        world.clock.advance(60)
        assert (await world.check("pro", user="u")).allowed

    run(backend, kind, tmp_path, body)


@backends
@every_kind
def test_an_upgrade_lengthens_no_wait_and_a_downgrade_admits_no_more_than_its_limit(
    backend: str, kind: str, tmp_path: Path
) -> None:
    async def body(world: Limited) -> None:
        small, large = (6, 6), (20, 60)
        world.reload(small, large, small)
        while (await world.check(None)).allowed:
            pass
        denied = await world.check(None)
        world.reload(large, large, large)
        assert (await world.check(None, 1)).retry_after_ms <= denied.retry_after_ms
        world.clock.advance(2 * 3_600_000)
        assert (await world.check(None, 20)).allowed
        world.reload(small, large, small)
        units = 0
        while (await world.check(None)).allowed:
            units += 1
        assert units <= 6

    run(backend, kind, tmp_path, body)


@backends
@every_kind
def test_a_pause_holds_under_every_plan_override_and_reload(
    backend: str, kind: str, tmp_path: Path
) -> None:
    async def body(world: Limited) -> None:
        small, large = (5, 5), (100, 100)
        world.reload(small, large, small)
        for user in ("vip", "u"):
            assert (await world.check(None, 2, user)).allowed
            until = world.clock.now() + 4_000
            await world.service.pause("api", until, attributes={"user": user})
        for figures in (small, large, (1, 100), (100, 1)):
            world.reload(figures, large, figures)
            for plan, user in ((None, "vip"), ("pro", "vip"), (None, "u"), ("pro", "u")):
                assert not (await world.check(plan, 1, user)).allowed
        world.clock.set(NOW + 3_999)
        assert not (await world.check("pro", 1, "u")).allowed

    run(backend, kind, tmp_path, body)


@backends
@pytest.mark.parametrize("kind", FIGURES)
def test_a_cancelled_charge_releases_the_share_that_it_took(
    backend: str, kind: str, tmp_path: Path
) -> None:
    """60 of 60 are used, and the limit is lowered to 6: 6 of the 60 are a tenth of it."""

    async def body(world: Limited) -> None:
        world.reload((60, 60), (60, 60), (60, 60))
        rest = {"user": "u"}
        six = await world.service.reserve("api", attributes=rest, cost=6)
        ten = await world.service.reserve("api", attributes=rest, cost=10)
        assert six.allowed
        assert ten.allowed
        assert (await world.check(None, 44, "u")).allowed
        world.reload((6, 6), (6, 6), (6, 6))
        assert await world.service.cancel(six.charge_id)
        assert not (await world.check(None, 1, "u")).allowed
        assert await world.service.settle(ten.charge_id, 0)
        assert (await world.check(None, 1, "u")).allowed
        assert not (await world.check(None, 1, "u")).allowed

    run(backend, kind, tmp_path, body)


SLOTS = """
version: 1
defaults: {prefix: "%s"}
limiters:
  jobs:
    limits:
      user: {by: user, strategy: gcra, limit: %d, period: 1h}
      flight: {by: user, strategy: slots, limit: 1, ttl: 1h}
    plans: {free: {user: {limit: 7}}%s}
    overrides: {flight: {other: {limit: 2}%s}}
"""


@pytest.mark.parametrize("backend", ["memory", "valkey", "sqlite"])
@pytest.mark.parametrize("ending", ["cancel", "settle"])
@pytest.mark.parametrize(
    ("plans", "overrides"),
    [
        ("", ", u: unlimited"),
        (", pro: {flight: unlimited, user: unlimited}", ""),
        (", pro: {flight: {limit: 4}}", ""),
        ("", ", u: {limit: 9}"),
    ],
)
def test_a_charge_releases_its_slot_whatever_the_figures_are(
    backend: str, ending: str, plans: str, overrides: str, tmp_path: Path
) -> None:
    async def main() -> None:
        prefix = new_key()
        store = MemoryStore() if backend == "memory" else open_store(url_of(backend, tmp_path))
        service = build_service(parse_policies(SLOTS % (prefix, 3, "", "")), store=store)
        await service.start()
        user = {"user": "u"}
        held = await service.reserve("jobs", attributes=user)
        assert held.allowed
        service.apply(parse_policies(SLOTS % (prefix, 5, plans, overrides)))
        if ending == "cancel":
            assert await service.cancel(held.charge_id)
        else:
            assert await service.settle(held.charge_id, {"user": 1})
        service.apply(parse_policies(SLOTS % (prefix, 3, "", "")))
        again = await service.reserve("jobs", attributes=user)
        assert again.allowed
        await service.aclose()

    asyncio.run(main())


def test_an_altered_charge_id_with_other_figures_is_refused() -> None:
    from penstock import ConfigInvalidError
    from penstock.service._charges import charge_id, read_charge_id

    async def main() -> None:
        service = build_service(parse_policies(SLOTS % ("p", 3, "", "")))
        held = await service.reserve("jobs", attributes={"user": "u"})
        text, _, seal = held.charge_id.rpartition(".")
        terms = read_charge_id(text)
        for figures in ([1, 1], [], [0, 5], ["a"], [1, 2, 3]):
            first = terms.held[0]._replace(figures=figures)
            altered = terms._replace(held=(first, *terms.held[1:]))
            with pytest.raises(ConfigInvalidError, match="charge"):
                await service.cancel(f"{charge_id(altered)}.{seal}")
        assert await service.cancel(held.charge_id)
        await service.aclose()

    asyncio.run(main())


# What `check-config --against` says, and what a reload does.

BEFORE = """
version: 1
defaults: {prefix: p}
limiters:
  rate: {strategy: gcra, limit: 6, period: 1h}
  bucket: {strategy: tokenBucket, capacity: 6, refillPerSec: 0.01}
  window: {strategy: fixedWindow, limit: 6, window: 1h}
  ring: {strategy: slidingWindow, limit: 6, window: 1h}
  log: {strategy: slidingWindowLog, limit: 6, window: 1h}
  month: {strategy: calendarQuota, limit: 6, period: month}
  model: {tokenBudget: {budget: 6, window: 1h}}
  jobs: {concurrency: {minLimit: 2, maxLimit: 2, leaseTtl: 1h}}
  each: {concurrency: {minLimit: 2, maxLimit: 2, leaseTtl: 1h, perKey: true}}
  both: {strategy: fixedWindow, limit: 9, window: 1h,
    concurrency: {minLimit: 2, maxLimit: 2, leaseTtl: 1h}}
  api:
    limits:
      user: {by: user, strategy: gcra, limit: 6, period: 1h}
      flight: {by: user, strategy: slots, limit: 6, ttl: 1h}
"""
CHANGES = [
    ("rate", "gcra, limit: 6", "gcra, limit: 7"),
    ("rate", "gcra, limit: 6", "gcra, limit: 6, burst: 3"),
    ("rate", "gcra, limit: 6, period: 1h", "gcra, limit: 6, period: 2h"),
    ("bucket", "capacity: 6", "capacity: 7"),
    ("bucket", "refillPerSec: 0.01", "refillPerSec: 0.02"),
    ("window", "fixedWindow, limit: 6", "fixedWindow, limit: 7"),
    ("window", "limit: 6, window: 1h}\n  ring", "limit: 6, window: 2h}\n  ring"),
    ("window", "limit: 6, window: 1h}\n  ring", "limit: 6, window: 1h, anchor: first}\n  ring"),
    ("ring", "slidingWindow, limit: 6", "slidingWindow, limit: 7"),
    ("ring", "slidingWindow, limit: 6", "slidingWindow, buckets: 3, limit: 6"),
    ("log", "slidingWindowLog, limit: 6", "slidingWindowLog, limit: 7"),
    ("log", "slidingWindowLog, limit: 6, window: 1h", "slidingWindowLog, limit: 6, window: 2h"),
    ("month", "calendarQuota, limit: 6", "calendarQuota, limit: 7"),
    ("month", "period: month", "period: year"),
    ("model", "budget: 6", "budget: 7"),
    ("model", "budget: 6, window: 1h", "budget: 6, window: 2h"),
    ("model", "{budget: 6, window: 1h}", "{budget: 6, window: 1h, maxKeys: 9}"),
    ("jobs", "jobs: {concurrency: {minLimit: 2, max", "jobs: {concurrency: {minLimit: 1, max"),
    ("jobs", "leaseTtl: 1h}}\n  each", "leaseTtl: 2h}}\n  each"),
    ("jobs", "leaseTtl: 1h}}\n  each", "leaseTtl: 1h, perKey: true}}\n  each"),
    ("jobs", "leaseTtl: 1h}}\n  each", "leaseTtl: 1h, law: aimd, backoff: 0.5}}\n  each"),
    ("each", "perKey: true", "perKey: false"),
    ("each", "perKey: true", "perKey: true, maxKeys: 5"),
    ("both", "strategy: fixedWindow, limit: 9", "strategy: fixedWindow, limit: 11"),
    ("api.user", "user: {by: user, strategy: gcra", "user: {by: team, strategy: gcra"),
    (
        "api.user",
        "user: {by: user, strategy: gcra",
        "user: {by: user, shadow: true, strategy: gcra",
    ),
    ("api.flight", "slots, limit: 6", "slots, limit: 7"),
    ("api.flight", "ttl: 1h", "ttl: 2h"),
    ("api.flight", "flight: {by: user", "flight: {by: team"),
    ("rate", "prefix: p", "prefix: q"),
    ("jobs", "prefix: p", "prefix: q"),
]


async def spend(service: Service, place: str) -> None:
    """Use something of the policy or limit."""
    name = place.partition(".")[0]
    if place == "model":
        assert await service.debit(name, "k", 2)
    elif name in ("jobs", "each", "both"):
        assert (await service.admit(name, "k")).decision.allowed
    elif name == "api":
        assert (await service.reserve(name, attributes=attributes_of(service))).allowed
    else:
        assert (await service.check(name, "k", 2)).allowed


def attributes_of(service: Service) -> dict[str, str]:
    several = service.policies["api"].several
    assert several is not None
    return dict.fromkeys(several.attributes(), "k")


async def is_counted(service: Service, place: str) -> bool:
    """Whether anything of it is used."""
    name, _, limit = place.partition(".")
    if place == "model":
        return (await service.debit(name, "k", 1)).remaining < service.policies[name].limit - 1
    if name in ("jobs", "each", "both"):
        decisions = [(await service.admit(name, "k")).decision for _ in range(2)]
        return not all(decision.allowed for decision in decisions)
    if name == "api":
        reserved = await service.reserve(name, attributes=attributes_of(service))
        decision = reserved.answer.verdict.limits[limit]  # type: ignore[union-attr]
        return decision.remaining < decision.limit - 1
    decision = await service.check(name, "k")
    return decision.remaining < decision.limit - 1


@pytest.mark.parametrize("backend", ["memory", "valkey"])
@pytest.mark.parametrize(("place", "was", "now"), CHANGES)
def test_a_reload_keeps_and_loses_what_is_said_of_it(
    backend: str, place: str, was: str, now: str, tmp_path: Path
) -> None:
    prefix = new_key()
    assert was in BEFORE
    texts = [
        each.replace("prefix: ", f"prefix: {prefix}")
        for each in (BEFORE, BEFORE.replace(was, now, 1))
    ]
    old, new = (parse_policies(each, "p.yaml") for each in texts)
    lost, _ = changes_between(old, new)
    is_lost = any(line.startswith((f"{place}:", f"{place}.", "all counts:")) for line in lost)

    async def main() -> None:
        store = MemoryStore() if backend == "memory" else open_store(url_of(backend, tmp_path))
        service = build_service(old, store=store)
        await service.start()
        await spend(service, place)
        service.apply(new)
        kept_elsewhere = backend == "valkey" and "maxKeys: 9" in now
        assert await is_counted(service, place) is (not is_lost or kept_elsewhere)
        await service.aclose()

    asyncio.run(main())
