"""What a file is warned of: surely a mistake, told with its place, and never a false alarm."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock import (
    Decision,
    ManualClock,
    Outcome,
    Strategy,
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    slots,
    token_bucket,
)
from penstock.config import parse_policies
from penstock.config._model import Condition, LimitSpec, SeveralSpec
from penstock.config._warnings import can_never_bind
from penstock.service import build_service
from penstock.strategies import Gcra
from tests.support.effort import count
from tests.support.helpers import NOW

HOUR = 3_600_000
MINUTE = 60_000


def warned(text: str) -> list[str]:
    body = "\n".join(f"    {line}" for line in text.splitlines())
    file = parse_policies(f"version: 1\nlimiters:\n  api:\n{body}\n", "p.yaml")
    return list(file.warnings)


def limits(**each: str) -> str:
    return "limits:\n" + "".join(f"  {name}: {{{body}}}\n" for name, body in each.items())


USER = "by: user, strategy: gcra, limit: 100, period: 1m"
HOURLY = "by: user, strategy: fixedWindow, limit: %d, window: 1h"


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        (
            limits(user=USER, hourly=HOURLY % 6_100),
            "line 6: limiters.api.limits.hourly: ",
            "never denies anything: user is tighter at every span",
        ),
        (
            limits(
                all="strategy: gcra, limit: 10, period: 1s",
                user=USER.replace("100", "900"),
            ),
            "line 6: limiters.api.limits.user: ",
            "all is tighter",
        ),
        (limits(one=USER, two=USER), "limits.two: ", "one says the same; leave one of them out"),
        (
            limits(one=f"{USER}, shadow: true", two=USER),
            "limits.one: ",
            "is a shadow that never reports anything: two says the same, and denies",
        ),
        (
            limits(a="strategy: slots, limit: 9", b="strategy: slots, limit: 5"),
            "limits.a: ",
            "b is tighter",
        ),
        (
            "strategy: gcra\nlimit: 10\nperiod: 1s\nburst: 100",
            "line 7: limiters.api.burst: ",
            "100 at once take 10 seconds to refill, longer than the 1 second for 10; "
            "write at most burst: 10, or, if that is intended, tokenBucket with capacity: 100 and "
            "refillPerSec: 10",
        ),
        (
            limits(user=f"{USER}, burst: 100") + "plans: {free: {user: {limit: 10}}}",
            "line 6: limiters.api.plans.free.user.burst: ",
            "100 at once take 10 minutes",
        ),
        (
            "strategy: fixedWindow\nlimit: 50\nwindow: 1m\ntwoTier: {}",
            "limiters.api.twoTier.batch: ",
            "a batch of 100 is more than the limit of 50: the first node",
        ),
        (
            limits(user=USER) + "plans: {free: {user: {limit: 100}}}",
            "plans.free.user: ",
            "changes nothing: these are the figures of user",
        ),
        (
            limits(user=USER) + "overrides: {user: {bob: {limit: 100}}}",
            "overrides.user.bob: ",
            "changes nothing",
        ),
        (
            limits(user=f"{USER}, when: {{plan: free}}")
            + "plans: {free: {}, pro: {user: {limit: 7}}}",
            "plans.pro.user: ",
            "is never used: user does not apply to this plan",
        ),
        (
            limits(user=f"{USER}, when: {{plan: {{exists: false}}}}")
            + "plans: {pro: {user: {limit: 7}}}",
            "plans.pro.user: ",
            "is never used",
        ),
        (
            limits(user=f"{USER}, when: {{user: [ann, bob]}}")
            + "overrides: {user: {joe: {limit: 7}}}",
            "overrides.user.joe: ",
            "is never used: user does not apply to this user",
        ),
        (
            limits(user=f"{USER}, when: {{plan: [pro, gold]}}")
            + "plans: {pro: {user: {limit: 7}}}",
            "limits.user.when.plan: ",
            "'gold' is not a plan of this policy; it has pro",
        ),
        (
            limits(user=f"{USER}, optional: true, when: {{user: {{exists: false}}}}"),
            "limits.user.when.user: ",
            "holds only without user, which is the key of this limit",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, place: str, told: str) -> None:
    """The file, the line and the path; once."""
    (line,) = warned(text)
    assert line.startswith("p.yaml, line ")
    assert place in line
    assert told in line


@pytest.mark.parametrize(
    "text",
    [
        limits(user=USER, hourly=HOURLY % 6_098),  # a burst, and a minute's worth on each edge
        limits(user=USER, tenant=USER.replace("by: user", "by: tenant")),
        limits(user=USER, all="strategy: gcra, limit: 900, period: 1m"),
        limits(user=f"{USER}, shadow: true", hourly=HOURLY % 9_000),
        limits(user=USER, hourly=f"{HOURLY % 9_000}, cost: tokens"),
        limits(user=f"{USER}, cost: n", hourly=f"{HOURLY % 9_000}, cost: n"),
        limits(user=f"{USER}, when: {{m: POST}}", hourly=HOURLY % 9_000),
        limits(user=USER, hourly=HOURLY % 9_000) + "plans: {pro: {user: unlimited}}",
        limits(user=USER, hourly=HOURLY % 9_000) + "plans: {pro: {user: {limit: 1000}}}",
        limits(user=USER, two=USER) + "overrides: {user: {bob: {limit: 101}}}",
        limits(user=USER) + "plans: {free: {}, pro: {user: {limit: 7}}}",
        limits(user=USER)
        + "plans: {pro: {user: {limit: 7}}}\noverrides: {user: {bob: {limit: 100}}}",
        limits(user=f"{USER}, when: {{plan: pro}}") + "plans: {pro: {user: {limit: 7}}}",
    ],
)
def test_what_may_be_meant_is_not_warned_of(text: str) -> None:
    """Limits of other keys, costs and conditions, and figures that do change something."""
    assert warned(text) == []


def test_a_short_window_that_fits_exactly_into_a_long_one_is_seen() -> None:
    """60 minutes of 10 are 600: one less per hour can bind, and 600 cannot."""
    minute = "by: user, strategy: fixedWindow, limit: 10, window: 1m"
    assert warned(limits(minute=minute, hourly=HOURLY % 599)) == []
    assert len(warned(limits(minute=minute, hourly=HOURLY % 600))) == 1


def test_a_long_file_repeats_its_warnings_up_to_a_bound() -> None:
    """Each policy with the mistake is named."""
    one = "{strategy: gcra, limit: 1, period: 1s, burst: 2}"
    text = "version: 1\nlimiters:\n" + "".join(f"  p{n}: {one}\n" for n in range(1_200))
    told = parse_policies(text, "p.yaml").warnings
    assert len(told) == 1_000
    assert told[999].startswith("p.yaml, line 1002: limiters.p999.burst: ")


# A timeline is not told any better by a shorter one, and looking for it takes minutes.
UNSHRUNK = (Phase.explicit, Phase.generate)
# Few values, so that most of two are near each other or the same.
SPANS = st.sampled_from([20, 40, 100])
COUNTS = st.sampled_from([1, 2, 3, 5, 6, 10, 12, 30])
EACH = [
    st.builds(gcra, COUNTS, st.sampled_from([40, 100]), st.none() | COUNTS),
    st.builds(token_bucket, COUNTS, st.sampled_from([10, 50, 1000 / 3])),
    st.builds(fixed_window, COUNTS, SPANS, st.sampled_from(["epoch", "first"])),
    st.builds(sliding_window_log, COUNTS, SPANS),
    st.builds(sliding_window, COUNTS, SPANS, st.sampled_from([1, 3])),
    st.builds(calendar_quota, COUNTS, st.sampled_from(["hour", "day", "week", "month"])),
]
SOME = st.one_of(EACH)
TWO = st.one_of(*(st.tuples(each, each) for each in EACH), st.tuples(SOME, SOME))


class Kept:
    """The state of one key under a strategy."""

    def __init__(self) -> None:
        self.state: Any = None
        self.until = 0

    def ask(self, strategy: Strategy, now: int, cost: int) -> Outcome[Decision]:
        return strategy.check(self.state if now < self.until else None, now, cost)

    def write(self, outcome: Outcome[Decision], now: int) -> None:
        if outcome.persist:
            self.state, self.until = outcome.state, now + outcome.ttl_ms


def denials(
    loose: Strategy, tight: Strategy, moments: random.Random, *, alongside: bool
) -> list[int]:
    """When the loose one denies what the tight one admits, at full speed and with pauses; without
    `alongside`, the tight one is charged by others too."""
    own, other, now, found = Kept(), Kept(), 1_700_000_000_000 + moments.randrange(9_999), []
    steps = moments.choice([(0, 0, 1), (0, 1, 3, 19), (1, 7, 20, 39, 40), (0, 3, 60, 101)])
    for _ in range(150):
        now += moments.choice(steps)
        cost = moments.choice([1, 1, 1, 2, moments.randint(1, tight.limit)])
        stranger = not alongside and moments.random() < 0.4
        admitted = other.ask(tight, now, cost)
        if not admitted.result.allowed:
            continue
        if not stranger:
            answer = own.ask(loose, now, cost)
            if not answer.result.allowed:
                found.append(now)
                continue
            own.write(answer, now)
        other.write(admitted, now)
    return found


@given(TWO, st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=count(100, 300), phases=UNSHRUNK)
def test_what_is_called_looser_never_denies_what_the_other_admits(
    two: tuple[Strategy, Strategy], alongside: bool, moments: random.Random
) -> None:
    """By the strategies themselves, over random timelines."""
    for loose, tight in (two, two[::-1]):
        if loose.is_looser_than(tight, alongside=alongside, steady=True):
            assert denials(loose, tight, moments, alongside=alongside) == []


@given(SOME, SPANS, st.randoms(use_true_random=False))
@settings(max_examples=count(40, 100), phases=UNSHRUNK)
def test_no_span_holds_more_than_the_most_that_is_told(
    strategy: Strategy, span_ms: int, moments: random.Random
) -> None:
    """Units admitted at so many instants in a row, wherever they begin."""
    most = strategy.most_within(span_ms)
    kept, now, admitted = Kept(), 1_700_000_000_000 + moments.randrange(9_999), []
    for _ in range(300 if most is not None else 0):
        now += moments.choice([0, 0, 0, 1, 2, 9, 19, 60])
        for cost in (moments.randint(1, strategy.limit), 1):
            answer = kept.ask(strategy, now, cost)
            if answer.result.allowed:
                admitted.append((now, cost))
                kept.write(answer, now)
    for start, _ in admitted:
        held = sum(cost for at, cost in admitted if start <= at < start + span_ms)
        assert most is not None
        assert held <= most


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.sampled_from([1_000, 1_500]))
def test_of_two_paces_all_is_known(
    limit: int, burst: int, other_limit: int, other_burst: int, period_ms: int
) -> None:
    """Where one is not looser it does deny something, and it can be shown: the other's burst, and
    then its rate for as long as it takes."""
    loose, tight = gcra(limit, period_ms, burst), gcra(other_limit, 1_000, other_burst)
    if loose.is_looser_than(tight, alongside=True, steady=True):
        return
    own, other, now = Kept(), Kept(), 1_700_000_000_000
    costs = [tight.burst, *([1] * 300_000)]
    for cost in costs:
        admitted = other.ask(tight, now, cost)
        now += admitted.result.retry_after_ms
        admitted = other.ask(tight, now, cost)
        answer = own.ask(loose, now, cost)
        if not answer.result.allowed:
            return
        own.write(answer, now)
        other.write(admitted, now)
    raise AssertionError(f"{loose} was never seen to deny what {tight} admits")


FIGURES = (
    st.builds(
        gcra, st.sampled_from([5, 10, 20]), st.just(1_000), st.none() | st.sampled_from([5, 10])
    )
    | st.none()
)


@given(
    st.tuples(FIGURES.filter(bool), FIGURES, FIGURES),
    st.tuples(FIGURES.filter(bool), FIGURES, FIGURES),
    st.sampled_from([None, "user"]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=count(40, 100), phases=UNSHRUNK)
def test_with_plans_and_overrides_a_limit_is_asked_by_all_of_its_figures(
    loose: Any, tight: Any, by: str | None, moments: random.Random
) -> None:
    """A key that changes its plan goes on with its counts; whatever it changes to, what is said
    never to bind does not."""
    overrides = {"loose": {"bob": loose[2]}} | ({"tight": {"bob": tight[2]}} if by else {})
    several = SeveralSpec(
        (LimitSpec("loose", loose[0], by="user"), LimitSpec("tight", tight[0], by=by)),
        plans={"pro": {"loose": loose[1], "tight": tight[1]}},
        overrides=overrides,
    )
    if not can_never_bind(several, *several.limits):
        return
    kept: dict[tuple[str, str], Kept] = {}
    now = 1_700_000_000_000
    for _ in range(300):
        now += moments.choice([0, 0, 1, 10, 33, 150])
        user, plan = moments.choice(["ann", "bob"]), moments.choice([0, 1])
        at = 2 if user == "bob" else plan
        one, two = loose[at], tight[at if by else plan]
        own = kept.setdefault(("loose", user), Kept())
        other = kept.setdefault(("tight", user if by else ""), Kept())
        admitted = two and other.ask(two, now, 1)
        if admitted and not admitted.result.allowed:
            continue
        answer = one and own.ask(one, now, 1)
        if answer:
            assert answer.result.allowed
            own.write(answer, now)
        if admitted:
            other.write(admitted, now)


@pytest.mark.parametrize(
    ("loose", "tight", "alongside", "steady", "looser"),
    [
        # Windows that open with a first request do so at other instants for others.
        (fixed_window(5, 100, "first"), fixed_window(5, 100, "first"), True, False, True),
        (fixed_window(9, 100, "first"), fixed_window(5, 100, "first"), False, True, False),
        (fixed_window(10, 100, "first"), fixed_window(5, 100, "first"), False, True, True),
        (fixed_window(9, 100), fixed_window(5, 100, "first"), True, True, False),
        (fixed_window(10, 100), fixed_window(5, 50), True, False, False),
        (fixed_window(10, 100), fixed_window(5, 50), True, True, True),
        # A debt that is kept in ms is not paid off faster under other figures.
        (gcra(10, 100, 5), gcra(5, 100, 5), True, True, True),
        (gcra(10, 100, 5), gcra(5, 100, 5), True, False, False),
        (gcra(5, 100, 9), gcra(5, 100, 5), False, False, True),
        (token_bucket(5, 50), token_bucket(5, 10), True, False, True),
        (token_bucket(5, 50), token_bucket(5, 10), False, True, False),
        # A third of a window more counts in part.
        (sliding_window(19, 30, 3), sliding_window_log(10, 40), True, True, False),
        (sliding_window(20, 30, 3), sliding_window_log(10, 40), True, True, True),
        (sliding_window_log(9, 30), gcra(10, 300, 10), True, True, False),
        (sliding_window_log(10, 30), gcra(10, 300, 10), True, True, True),
        (calendar_quota(310, "month"), calendar_quota(10, "day"), True, True, True),
        (calendar_quota(309, "month"), calendar_quota(10, "day"), True, True, False),
        (
            calendar_quota(310, "month"),
            calendar_quota(10, "day", "Asia/Tokyo"),
            True,
            True,
            False,
        ),
    ],
)
def test_what_is_claimed_at_the_edges(
    loose: Strategy, tight: Strategy, alongside: bool, steady: bool, looser: bool
) -> None:
    """Neither more than can be proved nor less."""
    assert loose.is_looser_than(tight, alongside=alongside, steady=steady) is looser


class Stricter(Gcra):
    """One that replaces `check`, and so is not what was proved of its parent."""

    def check(self, state: float | None, now: int, cost: int) -> Outcome[Decision]:
        return super().check(state, now, cost * 2)


def test_nothing_is_claimed_of_a_check_that_was_replaced() -> None:
    """It decides otherwise than the class whose proof it would inherit."""
    same = SeveralSpec((LimitSpec("a", Stricter(9, 1_000)), LimitSpec("b", gcra(5, 1_000))))
    assert not can_never_bind(same, *same.limits)


@pytest.mark.parametrize(
    ("loose", "tight", "never"),
    [
        ((Condition("m", ("A",)),), (Condition("m", ("A", "B")),), True),
        ((Condition("m", ("A", "B")),), (Condition("m", ("A",)),), False),
        ((Condition("m", ("A",)),), (Condition("m"),), True),
        ((Condition("m", ("A",)),), (), True),
        ((), (Condition("m"),), False),
        ((Condition("m", exists=False),), (Condition("m"),), False),
        ((Condition("m"),), (Condition("n"),), False),
    ],
)
def test_a_limit_is_compared_with_those_that_are_asked_whenever_it_is(
    loose: tuple[Condition, ...], tight: tuple[Condition, ...], never: bool
) -> None:
    """By what their conditions say."""
    two = (
        LimitSpec("a", fixed_window(9, 1_000), when=loose),
        LimitSpec("b", fixed_window(5, 1_000), when=tight),
    )
    assert can_never_bind(SeveralSpec(two), *two) is never


def test_slots_that_are_held_longer_may_bind() -> None:
    """Though there are more of them."""
    for ttl_ms, never in ((10, True), (20, True), (21, False)):
        two = LimitSpec("a", slots(9, ttl_ms)), LimitSpec("b", slots(5, 20))
        assert can_never_bind(SeveralSpec(two), *two) is never


CONVERTED = """
version: 1
limiters:
  api:
    limits:
      one: {by: user, strategy: gcra, limit: 10, period: 1m}
      other: {by: user, strategy: gcra, limit: 10, period: 1m}
    plans:
      pro: {one: {limit: 100, burst: 100}, other: {limit: 100, burst: 10}}
"""


def test_a_limit_that_a_plan_makes_looser_may_bind_without_that_plan() -> None:
    """Used units are ten times as many where burst and rate are ten times as large, and take longer
    to be replenished: the limit with the larger figures has less left later. So nothing is said of
    it."""
    file = parse_policies(CONVERTED)
    assert file.warnings == ()

    clock = ManualClock(NOW)
    service = build_service(file, clock=clock)

    def verdict(cost: int, **plan: str) -> Any:
        return service.judge("api", {"user": "u", **plan}, cost).verdict  # type: ignore[union-attr]

    assert verdict(10)
    clock.advance(6_000)
    assert verdict(1, plan="pro")
    clock.advance(6_000)
    denied = verdict(10)
    assert denied.limits["other"].allowed
    assert denied.violated == ("one",)
