"""Policies of several limits: which are asked, with which figures, and what a reload keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import ConfigInvalidError, ManualClock, StoreUnavailableError, Verdict, unlimited
from penstock.config import parse_policies
from penstock.service._core import Service, build_service
from penstock.stores.memory import MemoryStore
from tests.support.helpers import NOW

from .several import FILE, judged, serving


@pytest.fixture
def service() -> Service:
    return serving()


def test_all_limits_decide_together_and_a_denied_request_is_charged_nowhere(
    service: Service,
) -> None:
    """The third of the tenant's five is the user's last."""
    for _ in range(3):
        assert judged(service, user="bob", tenant="acme")
    denied = judged(service, user="bob", tenant="acme")
    assert (denied.allowed, denied.binding, denied.violated) == (False, "user", ("user",))
    other = judged(service, user="carol", tenant="acme")
    assert other.limits["tenant"].remaining == 1
    assert other.limits["all"].remaining == 96


def many(service: Service, each: list[Any], policy: str = "api", cost: int = 1) -> list[Verdict]:
    return [told.verdict for told in asyncio.run(service.judge_many(policy, each, cost))]


def test_many_requests_are_judged_in_order_as_one_check_each(service: Service) -> None:
    """Each by its own attributes and plan: one that is denied is charged nowhere."""
    bob, carol = {"user": "bob", "tenant": "acme"}, {"user": "carol", "tenant": "acme"}
    told = many(service, [bob, bob, bob, bob, carol, {"user": "bob", "plan": "pro"}])
    assert [verdict.allowed for verdict in told] == [True, True, True, False, True, True]
    assert told[3].violated == ("user",)
    assert told[4].limits["tenant"].remaining == 1
    assert told[5].limits["user"].remaining == 6
    single, batch = serving(), [{"user": "u", "tokens": 400, "method": "POST"}, bob] * 4
    assert many(serving(), batch) == [judged(single, **each) for each in batch]
    assert many(service, []) == []


@pytest.mark.parametrize(
    "bad", [{}, {"user": ""}, {"user": "u", "colour": "red"}, {"user": "u", "plan": "gold"}]
)
def test_of_many_requests_none_is_charged_if_one_says_too_little(
    service: Service, bad: dict[str, str]
) -> None:
    """Nor if there are too many of them."""
    for each in ([{"user": "bob"}, bad], [{"user": "bob"}] * 1_001):
        with pytest.raises(ConfigInvalidError):
            many(service, each)
    assert judged(service, user="bob").limits["user"].remaining == 2


def test_many_keys_are_the_attribute_key(service: Service) -> None:
    """For those who know nothing of attributes; others are told what a policy asks for."""
    file = parse_policies(
        "version: 1\nlimiters: {p: {limits: {each: {by: key, strategy: gcra, limit: 2, "
        "period: 1m}, all: {strategy: gcra, limit: 3, period: 1m}}}}"
    )
    clock = ManualClock(NOW)
    keyed = build_service(file, store=MemoryStore(clock=clock), clock=clock)
    told = asyncio.run(keyed.check_many("p", ["a", "a", "a", "b", "c"]))
    assert [decision.allowed for decision in told] == [True, True, False, True, False]
    with pytest.raises(ConfigInvalidError, match="no attribute 'key'"):
        asyncio.run(service.check_many("api", ["a"]))
    with pytest.raises(ConfigInvalidError, match="has a single limit"):
        many(service, [{"user": "u"}], policy="one")


def test_a_plan_and_an_override_replace_figures_on_the_same_counts(service: Service) -> None:
    """Whoever upgrades goes on with what was spent."""
    for _ in range(3):
        judged(service, user="bob")
    assert not judged(service, user="bob")
    assert judged(service, user="bob", plan="pro").limits["user"].remaining == 6
    assert judged(service, user="alice").limits["user"].limit == 4
    # An override goes before the plan.
    assert judged(service, user="alice", plan="pro").limits["user"].limit == 4


def test_a_limit_that_is_lifted_is_not_asked(service: Service) -> None:
    """By plan, or for a single key."""
    assert set(judged(service, user="bob", plan="staff", tenant="t").limits) == {"all"}
    assert set(judged(service, user="root").limits) == {"all"}


def test_conditions_say_which_limits_are_asked(service: Service) -> None:
    """The others are not charged."""
    assert set(judged(service, user="u", method="GET").limits) == {"user", "all"}
    for name in ("u1", "u2"):
        assert judged(service, user=name, method="POST")
    assert judged(service, user="u3", method="PUT").violated == ("posts",)


def test_a_cost_may_be_an_attribute(service: Service) -> None:
    """And the others cost what the request says, 1 by default."""
    first = judged(service, user="u", tokens=700)
    assert first.limits["tokens"].remaining == 300
    assert first.limits["user"].remaining == 2
    assert judged(service, user="u", tokens=400).violated == ("tokens",)
    assert judged(service, user="u", tokens=0, cost=2).limits["user"].remaining == 0


def test_a_shadow_never_denies_and_is_counted_apart() -> None:
    """The verdict and the metrics tell what it would have done."""
    service = serving()
    for name in ("a", "b", "c", "d"):
        assert judged(service, "tight", user=name).allowed
    told = judged(service, "tight", user="e")
    assert told.allowed
    assert told.shadowed == ("all",)
    counts = service.snapshot().policies
    assert (counts["tight/user"]["allowed"], counts["tight/user"]["denied"]) == (5, 0)
    assert (counts["tight/all/shadow"]["allowed"], counts["tight/all/shadow"]["denied"]) == (3, 2)
    assert counts["tight"]["allowed"] == 5


def test_those_who_send_a_key_alone_are_asked_by_it(service: Service) -> None:
    """It is the attribute `key`: older clients need not know of attributes."""
    assert asyncio.run(service.reserve("key", key="k")).allowed
    verdict = asyncio.run(service.peek_all("key", {"key": "k"})).verdict
    assert verdict.limits["each"].remaining == 1


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({}, "the attribute 'user' is missing: it is the key of the limit 'user'"),
        ({"user": "u", "tenent": "t"}, "has no attribute 'tenent'; it has method, plan"),
        ({"user": ""}, "the attribute 'user': key must not be empty"),
        ({"user": "x" * 5_000}, "the attribute 'user': key must be at most"),
        ({"user": 7}, "the attribute 'user': key must be a string"),
        ({"user": "u", "plan": "gold"}, "has no plan 'gold' for the attribute 'plan'"),
        ({"user": "u", "plan": 3}, "has no plan 3"),
        ({"user": "u", "tokens": "many"}, "the attribute 'tokens' must be"),
        ({"user": "u", "tokens": -1}, "the attribute 'tokens' must be"),
        ({"user": "u", "method": ""}, "the attribute 'method' must be text, of 1 to 4,096 bytes"),
        ({"user": "u", "method": 0}, "not empty, or 0"),
        ({"user": "u", "method": 3}, "the attribute 'method' must be text"),
        ({"user": "u", "method": "x" * 5_000}, "the attribute 'method' must be text"),
    ],
)
def test_what_is_wrong_with_attributes_is_told_and_charges_nothing(
    service: Service, attributes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigInvalidError) as caught:
        judged(service, **attributes)
    assert told in str(caught.value)
    assert judged(service, user="fresh").limits["all"].remaining == 99


@pytest.mark.parametrize("device", ["", "x" * 5_000, 7])
def test_a_key_is_looked_at_where_its_limit_is_not_asked_too(device: Any) -> None:
    file = """
version: 1
limiters:
  api:
    limits:
      all: {strategy: fixedWindow, limit: 5, window: 1m}
      device: {by: device, strategy: gcra, limit: 2, period: 1m, when: {trial: {exists: true}}}
"""
    service = build_service(parse_policies(file, "p.yaml"), clock=ManualClock(NOW))
    with pytest.raises(ConfigInvalidError, match="the attribute 'device'"):
        judged(service, device=device)
    with pytest.raises(ConfigInvalidError, match="the attribute 'trial' must be text"):
        judged(service, device="d", trial="")
    # What need only exist may be a number.
    assert judged(service, device="d", trial=3).limits["device"].remaining == 1
    assert judged(service, device="d").limits["all"].remaining == 3


def test_attributes_are_not_for_a_policy_of_one_limit(service: Service) -> None:
    with pytest.raises(ConfigInvalidError, match="has a single limit: pass a key"):
        judged(service, "one", user="u")


def test_a_request_that_no_limit_is_asked_for_is_admitted(service: Service) -> None:
    """Nothing restricts it."""
    limit = "{strategy: gcra, limit: 1, period: 1s, when: {m: P}}"
    file = f"version: 1\nlimiters: {{api: {{limits: {{p: {limit}}}}}}}"
    quiet = build_service(parse_policies(file, "p.yaml"), clock=ManualClock(NOW))
    nothing = Verdict((), (), (), NOW)
    assert nothing.decision == unlimited().check(None, NOW, 1).result
    assert quiet.judge("api", {"m": "G"}) == (nothing, None)
    assert quiet.judge("api", {}) == (nothing, None)


class AwayStore(MemoryStore):
    """A server that does not answer."""

    answers_at_once = False
    native_table = None

    async def aapply_all(self, steps: Any, now: int) -> Any:
        raise StoreUnavailableError("gone")

    aapply = aapply_all  # type: ignore[assignment]


@pytest.mark.parametrize(("policy", "allowed"), [("api", True), ("tight", False)])
def test_an_outage_is_answered_by_the_fail_mode(policy: str, allowed: bool) -> None:
    service = serving(AwayStore())
    verdict = judged(service, policy, user="u")
    assert verdict.allowed is allowed
    assert verdict.violated == (() if allowed else ("user",))
    assert asyncio.run(service.reserve(policy, attributes={"user": "u"})).charge_id == ""


@pytest.mark.parametrize(
    ("told", "now"), [("cost: tokens, ", ""), ("{by: user, cost", "{by: tenant, cost")]
)
def test_counts_by_another_attribute_or_of_other_units_start_afresh(told: str, now: str) -> None:
    """Those of a tenant are not those of the user of the same name, and tokens are no requests."""
    service = serving()
    judged(service, user="u", tokens=900)
    service.apply(parse_policies(FILE.replace(told, now), "p.yaml"))
    verdict = judged(service, user="u", tenant="u", **({"tokens": 1} if now else {}))
    assert verdict.limits["tokens"].remaining == 999
    assert verdict.limits["user"].remaining == 1


def test_a_reload_with_other_figures_keeps_the_counts_of_every_limit() -> None:
    """Plans too."""
    service = serving()
    for _ in range(3):
        judged(service, user="bob")
    service.apply(parse_policies(FILE.replace("limit: 3, window", "limit: 8, window"), "p.yaml"))
    assert judged(service, user="bob").limits["user"].remaining == 4
