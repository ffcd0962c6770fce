"""Policies of several limits: which are asked, with which figures; charges, pauses, resets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from penstock import ConfigInvalidError, ManualClock, StoreUnavailableError, Verdict
from penstock.config import parse_policies
from penstock.core._errors import UnsupportedError
from penstock.service._charges import KEPT_MS, read_charge_id
from penstock.service._core import Service, build_service
from penstock.service._judging import NOTHING, Judgement
from penstock.stores.memory import MemoryStore
from tests.stores.redis.live import new_key, open_empty
from tests.support.helpers import NOW

FILE = """\
version: 1
limiters:
  api:
    limits:
      user: {by: user, strategy: fixedWindow, limit: 3, window: 1m}
      tenant: {by: tenant, strategy: fixedWindow, limit: 5, window: 1m, optional: true}
      tokens: {by: user, cost: tokens, strategy: fixedWindow, limit: 1000, window: 1m,
        optional: true}
      all: {strategy: fixedWindow, limit: 100, window: 1m, shadow: true}
      posts: {strategy: fixedWindow, limit: 2, window: 1m, when: {method: [POST, PUT]}}
    plans:
      pro: {user: {limit: 10}}
      staff: {user: unlimited, tenant: unlimited}
    overrides:
      user: {alice: {limit: 4}, root: unlimited}
  key:
    limits:
      each: {by: key, strategy: fixedWindow, limit: 2, window: 1m}
      flight: {by: key, strategy: slots, limit: 1, ttl: 10s}
  everybody:
    limits:
      all: {strategy: fixedWindow, limit: 5, window: 1m}
  pace:
    limits:
      user: {by: user, strategy: gcra, limit: 1, period: 1s}
      day: {by: user, strategy: calendarQuota, limit: 5, period: day}
  one: {strategy: fixedWindow, limit: 2, window: 1m}
  tight:
    fail: closed
    limits:
      user: {by: user, strategy: fixedWindow, limit: 3, window: 1m}
      all: {strategy: fixedWindow, limit: 3, window: 1m, shadow: true}
"""


def serving(store: Any = None, clock: ManualClock | None = None) -> Service:
    at = clock or ManualClock(NOW)
    return build_service(
        parse_policies(FILE, "p.yaml"), store=store or MemoryStore(clock=at), clock=at
    )


@pytest.fixture
def service() -> Service:
    return serving()


def judged(service: Service, policy: str = "api", cost: int = 1, **attributes: Any) -> Verdict:
    asked = service.judge(policy, attributes, cost)
    return (asked if isinstance(asked, Judgement) else asyncio.run(asked())).verdict


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
    quiet = build_service(parse_policies(file, "p.yaml"))
    assert quiet.judge("api", {"m": "G"}) == (NOTHING, None)
    assert quiet.judge("api", {}) == (NOTHING, None)


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


STORES = ("memory", "valkey")


@pytest.fixture(params=STORES)
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Service, Service, Any]]:
    """Two services that share a store, each with policies of its own."""
    clock = ManualClock(NOW)
    if request.param == "memory":
        store = MemoryStore(clock=clock)
        yield serving(store, clock), serving(store, clock), asyncio.run
        return
    one, other = open_empty("valkey"), open_empty("valkey")
    text = FILE.replace("version: 1", f"version: 1\ndefaults: {{prefix: {new_key()}}}")
    loop = asyncio.new_event_loop()
    with closing(loop):
        made = [
            build_service(parse_policies(text, "p.yaml"), store=store) for store in (one, other)
        ]
        yield made[0], made[1], loop.run_until_complete
        for service in made:
            loop.run_until_complete(service.aclose())


def test_a_charge_is_settled_once_by_any_node(nodes: tuple[Service, Service, Any]) -> None:
    """What was too much comes back on each limit; whoever comes second changes nothing."""
    one, other, run = nodes
    told = {"user": "u", "tokens": 900}
    charge = run(one.reserve("api", attributes=told))
    assert charge.answer.verdict.limits["tokens"].remaining == 100
    assert run(other.settle(charge.charge_id, {"tokens": 250}))
    assert not run(one.settle(charge.charge_id, {"tokens": 0}))
    assert not run(one.cancel(charge.charge_id))
    left = run(one.peek_all("api", {"user": "u", "tokens": 0})).verdict
    assert left.limits["tokens"].remaining == 750
    assert left.limits["user"].remaining == 2


def test_cancelling_gives_everything_back(nodes: tuple[Service, Service, Any]) -> None:
    """Plans included, whose figures are found again by the id."""
    one, other, run = nodes
    charge = run(one.reserve("api", attributes={"user": "u", "plan": "pro"}, cost=7))
    assert run(other.cancel(charge.charge_id))
    assert (
        run(one.peek_all("api", {"user": "u", "plan": "pro"})).verdict.limits["user"].remaining
        == 10
    )


@pytest.mark.parametrize("used", [None, {"user": 0}, {"user": 0, "all": 0}])
def test_what_a_shadow_did_not_take_does_not_come_back(
    nodes: tuple[Service, Service, Any], used: dict[str, int] | None
) -> None:
    """Whoever settles the charge, and whatever of it is named."""
    one, other, run = nodes
    for user in "abc":
        run(one.reserve("tight", attributes={"user": user}))
    charge = run(one.reserve("tight", attributes={"user": "d"}))
    assert charge.answer.verdict.shadowed == ("all",)
    settle = other.cancel if used is None else partial(other.settle, actual=used)
    assert run(settle(charge.charge_id))
    left = run(one.peek_all("tight", {"user": "d"})).verdict.limits
    assert (left["user"].remaining, left["all"].remaining) == (3, 0)


def test_a_policy_of_one_limit_reserves_too(nodes: tuple[Service, Service, Any]) -> None:
    one, other, run = nodes
    charge = run(one.reserve("one", key="k", cost=2))
    assert charge.allowed
    denied = run(one.reserve("one", key="k"))
    assert not denied.allowed
    assert denied.charge_id == ""
    assert run(other.settle(charge.charge_id, 1))
    assert run(one.peek("one", "k")).remaining == 1


def test_a_crowd_settles_a_charge_exactly_once(nodes: tuple[Service, Service, Any]) -> None:
    """Twenty at once, on both nodes."""
    one, other, run = nodes

    async def main() -> list[bool]:
        charge = await one.reserve("api", attributes={"user": "u", "tokens": 1000})
        calls = [node.cancel(charge.charge_id) for node in (one, other) for _ in range(10)]
        return list(await asyncio.gather(*calls))

    assert sum(run(main())) == 1
    assert (
        run(one.peek_all("api", {"user": "u", "tokens": 0})).verdict.limits["tokens"].remaining
        == 1000
    )


def test_slots_are_held_by_a_charge_renewed_and_given_back(
    nodes: tuple[Service, Service, Any],
) -> None:
    one, other, run = nodes
    charge = run(one.reserve("key", key="k"))
    assert run(other.reserve("key", key="k")).answer.verdict.violated == ("flight",)
    assert run(other.renew(charge.charge_id))
    assert run(other.settle(charge.charge_id, {}))
    assert not run(one.renew(charge.charge_id))
    assert run(other.reserve("key", key="k")).allowed


def test_units_may_be_booked_ahead(nodes: tuple[Service, Service, Any]) -> None:
    """The limit with a pace tells when; cancelling the last booking gives it back."""
    one, other, run = nodes
    first = run(one.reserve("pace", attributes={"user": "u"}, max_wait_ms=5_000))
    second = run(other.reserve("pace", attributes={"user": "u"}, max_wait_ms=5_000))
    third = run(one.reserve("pace", attributes={"user": "u"}, max_wait_ms=5_000))
    assert 900 <= second.starts_at - first.starts_at <= 1_100
    assert 900 <= third.starts_at - second.starts_at <= 1_100
    assert run(other.cancel(third.charge_id))
    again = run(one.reserve("pace", attributes={"user": "u"}, max_wait_ms=5_000))
    assert abs(again.starts_at - third.starts_at) <= 100
    assert run(one.peek_all("pace", {"user": "u"})).verdict.limits["day"].remaining == 2


def test_an_id_that_was_made_up_or_altered_gives_nothing_back(service: Service) -> None:
    """Nor does one of a charge that was forgotten."""
    charge = asyncio.run(service.reserve("one", key="k"))
    terms = read_charge_id(charge.charge_id)
    more = terms._replace(held=(terms.held[0]._replace(units=2),)).body
    for wrong in (more, terms._replace(nonce="0" * 24).body):
        with pytest.raises(ConfigInvalidError, match="there is no such charge"):
            asyncio.run(service.cancel(wrong))
    for bad in ("x", "é", "a" * 200_000, charge.charge_id[:-4], charge.charge_id + ".x", "WzFd"):
        with pytest.raises(ConfigInvalidError, match="charge id"):
            asyncio.run(service.cancel(bad))
    assert asyncio.run(service.peek("one", "k")).remaining == 1


def test_an_id_cannot_be_altered_to_be_given_back_in_a_later_window() -> None:
    """How far ahead something was booked is no part of what the store knows of a charge, and what
    has no pace is not booked at all."""
    clock = ManualClock(NOW)
    service = serving(clock=clock)

    async def main() -> None:
        charge = await service.reserve("api", attributes={"user": "u"}, cost=3)
        clock.advance(60_000)
        assert judged(service, cost=2, user="u").allowed
        count = len(read_charge_id(charge.charge_id).held)
        later = "-".join(["60000"] * count)
        assert await service.cancel(f"{charge.charge_id}.{later}")
        left = (await service.peek_all("api", {"user": "u"})).verdict.limits
        assert left["user"].remaining == 1

    asyncio.run(main())


def test_a_charge_can_be_settled_for_a_day() -> None:
    clock = ManualClock(NOW)
    service = serving(clock=clock)
    charge = asyncio.run(service.reserve("one", key="k"))
    clock.advance(KEPT_MS)
    with pytest.raises(ConfigInvalidError, match="never made, or was made more than a day ago"):
        asyncio.run(service.settle(charge.charge_id, 0))


def test_what_a_denied_caller_holds_settles_nothing(service: Service) -> None:
    assert asyncio.run(service.settle("", 3)) is False
    assert asyncio.run(service.cancel("")) is False


def test_a_pause_holds_on_every_node_until_it_is_lifted(
    nodes: tuple[Service, Service, Any],
) -> None:
    """Of the limits that the attributes have keys for, or of those that are named."""
    one, other, run = nodes
    until = NOW * 2
    run(one.pause("one", until, key="k"))
    assert not run(other.check("one", "k"))
    run(other.reset("one", key="k"))
    assert run(one.check("one", "k"))
    run(one.pause("api", until, attributes={"user": "u"}))
    assert judge(other, run, user="u").violated == ("user",)
    assert judge(other, run, user="v")
    run(one.reset("api", attributes={"user": "u"}))
    assert judge(other, run, user="u")
    run(one.pause("api", until, attributes={"user": "u"}, limits=["posts"]))
    assert judge(other, run, user="u")
    assert judge(other, run, user="u", method="POST").violated == ("posts",)


def judge(service: Service, run: Any, **attributes: Any) -> Verdict:
    asked = service.judge("api", attributes)
    return (asked if isinstance(asked, Judgement) else run(asked())).verdict


def test_what_cannot_be_paused_or_reset_is_told(service: Service) -> None:
    async def fails(call: Any) -> str:
        with pytest.raises((ConfigInvalidError, UnsupportedError)) as caught:
            await call
        return str(caught.value)

    async def main() -> None:
        assert "has its key in these attributes (plan)" in await fails(
            service.reset("api", attributes={"plan": "pro"})
        )
        assert "there is no limit 'usr'" in await fails(
            service.reset("api", attributes={"user": "u"}, limits=["usr"])
        )
        assert "has a single limit" in await fails(service.reset("one", attributes={"user": "u"}))
        assert "key must" in await fails(service.reset("one"))
        assert "slots" in await fails(
            service.pause("key", NOW, attributes={"key": "k"}, limits=["flight"])
        )

    asyncio.run(main())


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


@pytest.mark.parametrize(
    ("told", "now"),
    [("1000, window: 1m", "1000, window: 1h"), ("{by: user, cost", "{by: tenant, cost")],
)
@pytest.mark.parametrize("actual", [None, {"tokens": 0, "user": 0}])
def test_a_charge_is_not_given_back_where_others_have_been_counted_since(
    told: str, now: str, actual: dict[str, int] | None
) -> None:
    """After a reload that lets counts start afresh: what it took of them is gone, and its other
    limits are settled."""
    service = serving()

    async def main() -> None:
        charge = await service.reserve("api", attributes={"user": "u", "tokens": 900})
        service.apply(parse_policies(FILE.replace(told, now), "p.yaml"))
        attributes = {"user": "u", "tenant": "u", "tokens": 600}
        judged(service, **attributes)
        settle = service.cancel if actual is None else partial(service.settle, actual=actual)
        assert await settle(charge.charge_id)
        left = (await service.peek_all("api", attributes)).verdict.limits
        assert (left["tokens"].remaining, left["user"].remaining) == (400, 2)

    asyncio.run(main())


def test_a_reload_with_other_figures_keeps_the_counts_of_every_limit() -> None:
    """Plans too."""
    service = serving()
    for _ in range(3):
        judged(service, user="bob")
    service.apply(parse_policies(FILE.replace("limit: 3, window", "limit: 8, window"), "p.yaml"))
    assert judged(service, user="bob").limits["user"].remaining == 4
