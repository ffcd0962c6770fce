"""Decisions as headers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from penstock import (
    Decision,
    ManualClock,
    MemoryStore,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    token_bucket,
    unlimited,
)
from penstock.adapters import decision_headers
from penstock.adapters._headers import field_name, policy_field, retry_after_s
from penstock.budget import token_budget
from penstock.concurrency import ConcurrencyLimiter, Gradient
from tests.support.helpers import KINDS, Reference, draw_strategy, draw_timeline

NOW = 1_700_000_000_000


def numbers(headers: dict[str, str]) -> tuple[int, int]:
    """`r` and `t`."""
    found = re.fullmatch(r'"api";r=([0-9]+);t=([0-9]+)', headers["RateLimit"])
    assert found is not None, headers
    return int(found[1]), int(found[2])


def test_an_allowed_decision_tells_what_is_left() -> None:
    """Two structured fields, and no more."""
    window = fixed_window(10, 60_000)
    headers = decision_headers("api", window, Decision(True, 10, 9, NOW + 60_000, 0), NOW)
    assert headers == {"RateLimit-Policy": '"api";q=10;w=60', "RateLimit": '"api";r=9;t=60'}


def test_a_denial_tells_when_to_come_back() -> None:
    """In whole seconds, rounded up, twice the same."""
    window = fixed_window(10, 60_000)
    headers = decision_headers("api", window, Decision(False, 10, 0, NOW + 9_500, 1_001), NOW)
    assert headers["Retry-After"] == "2"
    assert headers["RateLimit"] == '"api";r=0;t=2'


def test_the_quota_is_that_of_the_window_and_not_the_burst() -> None:
    """100 a minute are 100 a minute, however many of them may come at once."""
    limiter = rate_limit(gcra(100, 60_000, burst=20), clock=ManualClock(NOW))
    headers = decision_headers("api", limiter.strategy, limiter.check("k"), NOW)
    assert headers == {"RateLimit-Policy": '"api";q=100;w=60', "RateLimit": '"api";r=19;t=1'}
    decision = Decision(True, 10, 9, NOW + 200, 0)
    headers = decision_headers("api", token_bucket(10, 5), decision, NOW)
    assert headers["RateLimit-Policy"] == '"api";q=10'


def test_t_runs_to_the_next_unit_and_not_to_the_last() -> None:
    """One in six seconds: when half of ten are spent, the next is six seconds away, not thirty."""
    for strategy in (gcra(10, 60_000), token_bucket(10, 1 / 6)):
        limiter = rate_limit(strategy, clock=ManualClock(NOW))
        decision = limiter.check("k", 5)
        assert decision.reset_at == NOW + 30_000
        assert numbers(decision_headers("api", strategy, decision, NOW)) == (5, 6)
        peeked = decision_headers("api", strategy, limiter.peek("k"), NOW, peeked=True)
        assert numbers(peeked) == (5, 6)


def test_where_nothing_is_missing_there_is_nothing_to_wait_for() -> None:
    """A key that has rested, and a limit that is none."""
    limiter = rate_limit("10/minute", clock=ManualClock(NOW))
    peeked = decision_headers("api", limiter.strategy, limiter.peek("k"), NOW, peeked=True)
    assert numbers(peeked) == (10, 0)
    none = rate_limit(unlimited(), clock=ManualClock(NOW))
    assert numbers(decision_headers("api", none.strategy, none.check("k"), NOW))[1] == 0


def worlds(kind: str) -> Iterator[tuple[Strategy, list[tuple[int, int]]]]:
    """Strategies whose numbers are exact in doubles, and timelines."""
    rng = random.Random(f"headers/{kind}")
    while True:
        if kind == "token_budget":
            strategy: Strategy = token_budget(rng.randint(1, 50), rng.randint(1, 10**5))
        else:
            strategy = draw_strategy(kind, rng)
        if strategy.limit <= 10**6 and strategy.ttl_ms <= 10**10:
            yield strategy, draw_timeline(strategy, rng, 12, huge=False)


@pytest.mark.parametrize("kind", [*KINDS, "token_budget"])
def test_after_t_seconds_there_is_more_and_before_there_is_not(kind: str) -> None:
    """For every strategy, over timelines whose clock may jump, by checks and by peeks: r grows
    within the last of the t seconds. A sliding window, which cannot tell from a decision when its
    counts came, may be earlier, and a clock that stepped back a millisecond later."""
    rng = random.Random(kind)
    told = 0
    for strategy, timeline in worlds(kind):
        key = Reference(strategy)
        for now, cost in timeline:
            peeked = rng.random() < 0.3
            decision = strategy.peek(key.at(now), now) if peeked else key.check(now, cost)
            headers = decision_headers("api", strategy, decision, now, peeked=peeked)
            left, seconds = numbers(headers)
            assert left == decision.remaining
            if not decision.allowed:
                assert seconds == retry_after_s(decision) == int(headers["Retry-After"])
                continue
            if left == strategy.limit:
                assert seconds == 0
                continue
            told += 1
            assert seconds >= 1

            def left_in(ms: int, at: int = now, key: Reference = key) -> int:
                return key.strategy.peek(key.at(at + ms), at + ms).remaining

            assert left_in(seconds * 1_000) > left, (strategy, decision, now)
            early = (seconds - 1) * 1_000 - 1
            if early > 0 and kind != "sliding_window":
                assert left_in(early) <= left, (strategy, decision, now)
            assert (seconds - 1) * 1_000 < max(1, decision.reset_at - now)
        if told > 3_000:
            return


def test_a_sliding_window_that_was_spent_at_once_is_told_to_the_second() -> None:
    """Then all of it is in one tick, which is what a decision without ticks has to suppose."""
    window = sliding_window(10, 60_000, 10)
    limiter = rate_limit(window, clock=(clock := ManualClock(NOW)))
    decision = limiter.check("k", 4)
    left, seconds = numbers(decision_headers("api", window, decision, NOW))
    clock.set(NOW + (seconds - 1) * 1_000)
    assert limiter.peek("k").remaining == left
    clock.set(NOW + seconds * 1_000)
    assert limiter.peek("k").remaining > left


def test_a_slot_is_there_again_when_its_lease_has_run_out() -> None:
    """Slots have a ceiling and no window; t is the time after which one is back for certain."""
    clock = ManualClock(NOW)
    slots = ConcurrencyLimiter(Gradient(min_limit=2, max_limit=2), clock=clock, lease_ttl_ms=2_500)
    first = slots.admit().decision
    headers = decision_headers("api", None, first, NOW)
    assert headers == {"RateLimit-Policy": '"api";q=2', "RateLimit": '"api";r=1;t=3'}
    clock.advance(3_000)
    assert slots.admit().decision.remaining == 1
    assert slots.admit().decision.remaining == 0
    denied = slots.admit().decision
    headers = decision_headers("api", None, denied, clock.now())
    assert numbers(headers) == (0, int(headers["Retry-After"]))


def test_the_older_headers_come_on_request() -> None:
    """Their reset is an instant, in epoch seconds."""
    decision = Decision(True, 10, 9, NOW + 1, 0)
    headers = decision_headers("api", token_bucket(10, 1000), decision, NOW, legacy=True)
    assert headers["X-RateLimit-Limit"] == "10"
    assert headers["X-RateLimit-Remaining"] == "9"
    assert headers["X-RateLimit-Reset"] == str(NOW // 1000 + 1)
    assert headers["RateLimit-Policy"] == '"api";q=10'


@pytest.mark.parametrize(("ms", "seconds"), [(1, 1), (999, 1), (1_000, 1), (1_001, 2)])
def test_a_wait_is_never_rounded_down(ms: int, seconds: int) -> None:
    """A client that waits as told must not come too early."""
    assert retry_after_s(Decision(False, 1, 0, NOW, ms)) == seconds
    told = decision_headers("api", fixed_window(2, 9_000), Decision(True, 2, 1, NOW + ms, 0), NOW)
    assert numbers(told) == (1, seconds)


def test_clocks_that_differ_do_not_make_it_absurd() -> None:
    """A store that decides by its server's clock may be ahead of ours, or behind."""
    strategy = gcra(60, 60_000)
    ahead = Decision(True, 60, 59, NOW + 3_600_000, 0)
    assert numbers(decision_headers("api", strategy, ahead, NOW)) == (59, 1)
    behind = Decision(True, 60, 59, NOW - 3_600_000, 0)
    assert numbers(decision_headers("api", strategy, behind, NOW)) == (59, 1)


def test_a_name_is_a_string_of_printable_ascii() -> None:
    """Quotes are escaped, everything else percent-encoded, so that no name breaks a header."""
    assert field_name('a"b\\c') == '"a\\"b\\\\c"'
    assert field_name("é\r\n%") == '"%C3%A9%0D%0A%25"'


def test_numbers_stay_in_the_range_of_structured_fields() -> None:
    """Fifteen digits at most."""
    assert policy_field("a", 2**53 - 1, 1) == '"a";q=999999999999999;w=1'
    store = rate_limit(fixed_window(2**53 - 1, 1_000), store=MemoryStore(), clock=ManualClock(NOW))
    headers = decision_headers("api", store.strategy, store.check("k"), NOW)
    assert numbers(headers)[0] == 999_999_999_999_999
