"""`twoTier` and `federated` in policy files, and what the service makes of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigInvalidError, Decision, MemoryStore, Store, StoreUnavailableError
from penstock.config import TwoTierSpec, parse_policies
from penstock.config._policies import MODES
from penstock.leasing._two_tier import MODES as LEASING_MODES
from penstock.service import build_service
from tests.leasing.far import NOW, FarStore
from tests.support.helpers import run


def spec(policy: str) -> Any:
    text = f"version: 1\nlimiters:\n  api: {{{policy}}}\n"
    return parse_policies(text, "penstock.yaml").policies["api"]


WINDOW = "strategy: fixedWindow, limit: 30, window: 1m"


def test_two_tier_is_read_in_either_spelling() -> None:
    """With the defaults of `two_tier` for what is left out."""
    assert spec(f"{WINDOW}, twoTier: {{}}").two_tier == TwoTierSpec("leased", 100, 0, None, None)
    camel = "twoTier: {mode: leased, batch: 20, lowWater: 5, windowCoupled: false}"
    snake = "two_tier: {mode: leased, batch: 20, low_water: 5, window_coupled: false}"
    assert spec(f"{WINDOW}, {camel}").two_tier == spec(f"{WINDOW}, {snake}").two_tier
    assert (
        spec(f"{WINDOW}, twoTier: {{returnIdleAfterMs: 500}}").two_tier.return_idle_after_ms == 500
    )
    for stale in ("maxStale: 2s", "maxStaleMs: 2000", "max_stale_ms: 2000"):
        assert spec(f"{WINDOW}, twoTier: {{{stale}}}").two_tier.max_stale_ms == 2_000
    idle = spec(f"{WINDOW}, twoTier: {{returnIdleAfter: 2s}}").two_tier
    assert idle.return_idle_after_ms == 2_000


def test_the_modes_are_those_of_the_limiter() -> None:
    """Two places that must agree."""
    assert MODES == LEASING_MODES


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (f"{WINDOW}, twoTier: {{mode: loose}}", "twoTier.mode"),
        (f"{WINDOW}, twoTier: {{batch: 0}}", "twoTier.batch"),
        (f"{WINDOW}, twoTier: {{lowWater: 100}}", "twoTier.lowWater"),
        (f"{WINDOW}, twoTier: {{batch: 5, lowWater: 5}}", "twoTier.lowWater"),
        (f"{WINDOW}, twoTier: {{windowCoupled: 1}}", "twoTier.windowCoupled"),
        (f"{WINDOW}, twoTier: {{returnIdleAfterMs: 0}}", "twoTier.returnIdleAfterMs"),
        (f"{WINDOW}, twoTier: {{maxStaleMs: 0}}", "twoTier.maxStaleMs"),
        (f"{WINDOW}, twoTier: {{bach: 5}}", "did you mean batch"),
        (f"{WINDOW}, twoTier: 5", "twoTier: must be a mapping"),
        (
            "tokenBudget: {budget: 5, window: 1m}, twoTier: {}",
            "needs a strategy in the same policy",
        ),
        (f"{WINDOW}, federated: {{}}", "federated.batch: is missing"),
        (f"{WINDOW}, federated: {{batch: -1}}", "federated.batch"),
        ("strategy: gcra, limit: 5, period: 1m, federated: {batch: 5}", "strategy with a window"),
        (
            f"{WINDOW}, concurrency: {{minLimit: 1, maxLimit: 2}}, federated: {{batch: 5}}",
            "cannot be used with concurrency",
        ),
    ],
)
def test_what_could_not_work_is_refused_with_its_place(policy: str, told: str) -> None:
    """In the words of the file."""
    with pytest.raises(ConfigInvalidError, match=told):
        spec(policy)


def service_of(far: Store, policy: str, **options: Any) -> Any:
    text = f"version: 1\nlimiters:\n  api: {{{policy}}}\n"
    return build_service(parse_policies(text, "penstock.yaml"), store=far, **options)


def test_a_leased_policy_costs_a_round_trip_per_batch() -> None:
    """Through the service, with the policy's own counts and its limit."""

    async def story() -> None:
        far = FarStore()
        service = service_of(far, f"{WINDOW}, twoTier: {{batch: 10}}")
        allowed = [(await service.check("api", "k")).allowed for _ in range(35)]
        assert allowed == [True] * 30 + [False] * 5
        assert [grant.capacity for _, grant in far.grants] == [10, 10, 10, 0]
        assert service.snapshot() is not None
        await service.aclose()

    run(story())


@pytest.mark.parametrize(
    ("mode", "asked"), [("leased", ["lease"] * 2), ("cached-deny", ["check"] * 31)]
)
def test_the_mode_chooses_the_limiter(mode: str, asked: list[str]) -> None:
    """As `two_tier` does: one asks for batches, the other for all but a denial that it knows."""

    async def story() -> None:
        far = FarStore()
        service = service_of(far, f"{WINDOW}, twoTier: {{mode: {mode}}}")
        allowed = [(await service.check("api", "k")).allowed for _ in range(35)]
        assert allowed == [True] * 30 + [False] * 5
        assert [role for _, role, _ in far.calls] == asked
        await service.aclose()

    run(story())


def test_a_leased_policy_is_never_decided_in_passing() -> None:
    """A task may have its lease under way, and a call that blocks the loop would never end."""
    for mode, at_once in (("leased", False), ("cached-deny", True), ("strict", True)):
        service = service_of(MemoryStore(), f"{WINDOW}, twoTier: {{mode: {mode}}}")
        asked = service.decide("api", "k")
        assert isinstance(asked, Decision) is at_once
        assert asked if isinstance(asked, Decision) else run(asked())


@pytest.mark.parametrize(("fail", "answer"), [("open", True), ("closed", False), ("error", None)])
def test_while_the_store_is_away_credits_are_spent_and_then_the_fail_mode_answers(
    fail: str, answer: bool | None
) -> None:
    """And it recovers alone."""

    async def story() -> None:
        far = FarStore()
        service = service_of(far, f"{WINDOW}, twoTier: {{batch: 10}}, fail: {fail}")
        await service.check("api", "k")
        far.broken = True
        for _ in range(9):
            assert (await service.check("api", "k")).remaining >= 0
        assert far.leases == 1
        if answer is None:
            with pytest.raises(StoreUnavailableError):
                await service.check("api", "k")
        else:
            assert (await service.check("api", "k")).allowed is answer
        far.broken = False
        assert (await service.check("api", "k")).remaining == 9
        await service.aclose()

    run(story())


@pytest.mark.parametrize(("fail", "answer"), [("open", True), ("closed", False), ("error", None)])
def test_of_many_keys_those_with_credits_are_served_while_the_store_is_away(
    fail: str, answer: bool | None
) -> None:
    """The others follow the fail mode, each by itself; an error is one of the whole call."""

    async def story() -> None:
        far = FarStore()
        service = service_of(far, f"{WINDOW}, twoTier: {{batch: 10}}, fail: {fail}")
        await service.check("api", "hot")
        far.broken = True
        if answer is None:
            with pytest.raises(StoreUnavailableError):
                await service.check_many("api", ["cold", "hot"])
        else:
            many = await service.check_many("api", ["cold", "hot", "cool", "hot"])
            assert [(d.allowed, d.remaining) for d in many] == [
                (answer, 0),
                (True, 8),
                (answer, 0),
                (True, 7),
            ]
            assert service.snapshot().policies["api"]["store_away"] == 2
        await service.aclose()

    run(story())


def test_a_reload_that_means_the_same_keeps_the_credits() -> None:
    """Another batch starts without any; the store's counts go on either way."""

    async def story() -> None:
        far = FarStore()
        policy = f"{WINDOW}, twoTier: {{batch: 10}}"
        service = service_of(far, policy)
        await service.check("api", "k")
        again = parse_policies(f"version: 1\nlimiters:\n  api: {{{policy}, fail: closed}}\n")
        service.apply(again)
        assert (await service.check("api", "k")).remaining == 8
        other = policy.replace("10", "5")
        service.apply(parse_policies(f"version: 1\nlimiters:\n  api: {{{other}}}\n"))
        assert (await service.check("api", "k")).remaining == 4
        assert sum(grant.capacity for _, grant in far.grants) == 15
        await service.aclose()

    run(story())


def test_instants_are_the_stores() -> None:
    """A service's clock does not decide where the store has its own."""

    async def story() -> None:
        service = service_of(FarStore(), f"{WINDOW}, twoTier: {{batch: 10}}")
        decision = await service.check("api", "k")
        assert decision.reset_at == NOW // 60_000 * 60_000 + 60_000
        await service.aclose()

    run(story())


def test_the_documented_policy_is_one() -> None:
    """What docs/leases.md shows can be served."""
    text = (Path(__file__).parents[2] / "docs" / "leases.md").read_text()
    shown = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    policy = parse_policies(shown[1]).policies["api"]
    assert policy.two_tier == TwoTierSpec("leased", 100, 20)
    assert policy.federated == 1_000
