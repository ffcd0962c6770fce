"""Several limits in one policy, plans and overrides; and what is told when they are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import ConfigInvalidError, fixed_window, gcra, slots, token_bucket
from penstock.config import PolicySpec, parse_policies
from penstock.config._model import Condition, LimitSpec, SeveralSpec

LIMITS = """\
limits:
  user: {by: user, strategy: gcra, limit: 100, period: 1m}
  tenant: {by: tenant, strategy: fixed_window, limit: 1000, window: 1m, optional: true}
  tokens: {by: user, cost: tokens, strategy: tokenBucket, capacity: 500, refillPerSec: 8}
  flight: {by: user, strategy: slots, limit: 20, ttl: 10s, shadow: true}
  posts: {strategy: gcra, limit: 5, period: 1s, when: {method: [POST, PUT], trial: {exists: false}}}
"""
PLANS = """\
plans:
  by: tier
  pro: {user: {limit: 1000}, flight: {limit: 50, ttlMs: 20000}}
  staff: {user: unlimited}
overrides:
  user: {alice: {limit: 7, burst: 2}, "42": unlimited}
"""


def policy(text: str) -> PolicySpec:
    body = "\n".join(f"    {line}" for line in text.splitlines())
    return parse_policies(f"version: 1\nlimiters:\n  api:\n{body}\n", "p.yaml").policies["api"]


def several(text: str) -> SeveralSpec:
    spec = policy(text).several
    assert spec is not None
    return spec


def refusal(text: str) -> str:
    with pytest.raises(ConfigInvalidError) as caught:
        policy(text)
    return str(caught.value)


def test_limits_are_read_in_their_order() -> None:
    """With the attribute that is their key, and the one that is their cost."""
    spec = policy(LIMITS)
    assert spec.kind == "limits"
    wanted = (
        LimitSpec("user", gcra(100, 60_000), by="user"),
        LimitSpec("tenant", fixed_window(1000, 60_000), by="tenant", optional=True),
        LimitSpec("tokens", token_bucket(500, 8), by="user", cost="tokens"),
        LimitSpec("flight", slots(20, 10_000), by="user", shadow=True),
        LimitSpec(
            "posts",
            gcra(5, 1_000),
            when=(Condition("method", ("POST", "PUT")), Condition("trial", exists=False)),
        ),
    )
    assert repr(several(LIMITS).limits) == repr(wanted)


def test_plans_and_overrides_replace_figures_and_leave_the_rest() -> None:
    """A burst that is the limit by default follows the limit."""
    spec = several(LIMITS + PLANS)
    assert spec.plan_by == "tier"
    pro = {"user": gcra(1000, 60_000), "flight": slots(50, 20_000)}
    assert repr(spec.plans) == repr({"pro": pro, "staff": {"user": None}})
    assert repr(spec.overrides) == repr({"user": {"alice": gcra(7, 60_000, 2), "42": None}})
    assert set(spec.attributes()) == {"user", "tenant", "tokens", "method", "trial", "tier"}


def test_figures_never_change_where_counts_are_kept() -> None:
    """Otherwise a plan would have counts of its own."""
    spec = several(LIMITS + PLANS)
    base = {limit.name: limit.strategy.state_form for limit in spec.limits}
    for figures in spec.plans.values():
        for name, strategy in figures.items():
            assert strategy is None or strategy.state_form == base[name]


ONE = "limits: {user: {by: user, strategy: gcra, limit: 1, period: 1s}}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("limits: {}", "api.limits: must be a mapping of names to limits"),
        ("limits: [1]", "api.limits: must be a mapping"),
        ("limits: {'a:b': {}}", "a:b: the name of a limit is text"),
        ("limits: {user: {by: user}}", "limits.user.strategy: is missing; write one of gcra"),
        ("limits: {user: {strategy: gcar}}", "did you mean gcra"),
        ("limits: {user: {strategy: gcra, limit: 1}}", "limits.user.period: is missing"),
        ("limits: {user: {strategy: gcra, limit: 1, period: 1s, bye: x}}", "did you mean by?"),
        (ONE.replace("by: user", "by: 3"), "user.by: an attribute is text"),
        (ONE.replace("by: user", "shadow: true"), "all shadows"),
        (ONE.replace("by: user", "shadow: 1"), "user.shadow: must be true or false"),
        (ONE.replace("by: user", "optional: true"), "user.optional: needs `by` or `cost`"),
        (
            ONE.replace("by: user", "by: user, cost: user"),
            "user.cost: the attribute 'user' is used as text elsewhere",
        ),
        (ONE.replace("by: user", "when: POST"), "user.when: must be a mapping"),
        (ONE.replace("by: user", "when: {a: 1}"), "when.a: must be text, a list of texts"),
        (ONE.replace("by: user", "when: {a: {exist: true}}"), "did you mean exists"),
        ("limits: {s: {strategy: slots, limit: 1, cost: n}}", "s.cost: cannot be used with slots"),
        (ONE + "strategy: gcra", "api.strategy: cannot be used with `limits`"),
        (ONE + "concurrency: {}", "api.concurrency: cannot be used with `limits`"),
        (
            "strategy: gcra\nlimit: 1\nperiod: 1s\nplans: {a: {}}",
            "needs `limits` in the same policy",
        ),
        (ONE + "plans: {by: plan}", "api.plans: has no plan"),
        (
            ONE + "plans: {pro: {usr: {limit: 2}}}",
            "pro.usr: is not a limit of this policy; its limits are user",
        ),
        (ONE + "plans: {pro: {user: {limit: 0}}}", "pro.user.limit: must be a whole number"),
        (ONE + "plans: {pro: {user: {period: 2s}}}", "user.period: cannot differ by plan or key"),
        (ONE + "plans: {pro: {user: 7}}", "pro.user: must be figures such as {limit: 100}"),
        (ONE + "plans: {7: {user: {limit: 2}}}", "plans.7: a plan is named by text"),
        (ONE + "overrides: {user: {7: {limit: 2}}}", "user.7: a key is text; put it in quotes"),
        (ONE + "overrides: {user: {}}", "overrides.user: must map keys to figures"),
        (
            "limits: {all: {strategy: gcra, limit: 1, period: 1s}}\n"
            "overrides: {all: {a: {limit: 2}}}",
            "overrides.all: has no `by`",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, told: str) -> None:
    """The file, the line and the path."""
    said = refusal(text)
    assert said.startswith("p.yaml, line ")
    assert told in said


def test_a_limit_that_is_given_twice_is_refused() -> None:
    """The second would silently replace the first."""
    body = "limits:\n  user: {strategy: gcra, limit: 1, period: 1s}\n  user: {strategy: gcra}"
    assert "user: is given twice" in refusal(body)


def test_there_are_at_most_sixteen() -> None:
    """Each is a key of the store in every request."""
    each = {f"l{n}": "{strategy: gcra, limit: 1, period: 1s}" for n in range(17)}
    body = "limits:\n" + "\n".join(f"  {name}: {limit}" for name, limit in each.items())
    assert "must be at most 16, not 17" in refusal(body)


@pytest.mark.parametrize(
    ("wanted", "attributes", "holds"),
    [
        (Condition("m", ("POST",)), {"m": "POST"}, True),
        (Condition("m", ("POST",)), {"m": "GET"}, False),
        (Condition("m", ("POST",)), {}, False),
        (Condition("m", ("A", "B")), {"m": "B"}, True),
        (Condition("m"), {"m": "x"}, True),
        (Condition("m"), {}, False),
        (Condition("m", exists=False), {}, True),
        (Condition("m", exists=False), {"m": "x"}, False),
    ],
)
def test_a_condition_is_equal_in_or_exists(
    wanted: Condition, attributes: dict[str, Any], holds: bool
) -> None:
    assert wanted.holds(attributes) is holds
