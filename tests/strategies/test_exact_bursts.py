"""A cold key admits its burst, to the unit: every limit, every portion, every executor."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
import redis

from penstock import ConfigInvalidError, ManualClock, gcra, rate_limit, token_bucket
from penstock.strategies._gcra import Gcra
from tests.support.effort import some
from tests.support.helpers import PATHS, make_limiter, make_store
from tests.wire.live import SERVERS, check_all, check_many, connected

PERIODS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
LIMITS = range(1, 10_001)
# Up to here sums of instants and intervals are exact: the year 2109.
LATEST = 2**42

each_period = pytest.mark.parametrize("period_ms", PERIODS.values(), ids=PERIODS)


def instants(rng: random.Random, period_ms: int) -> int:
    """Any instant from which a whole period still lies in the range, and where the grid changes."""
    last = LATEST - 2 * period_ms
    edges = (1, 2**40 - 1, 2**40, 2**41 - 1, 2**41, last, 1_700_000_000_000)
    return rng.choice((*edges, rng.randint(1, last), rng.randint(1_600_000_000_000, 2**41)))


def portions(rng: random.Random, burst: int, most: int = 40) -> list[int]:
    """Costs that come to the burst."""
    costs: list[int] = []
    while (left := burst - sum(costs)) > 0:
        last = len(costs) >= most
        costs.append(left if last else rng.randint(1, min(left, max(1, 2 * burst // most))))
    rng.shuffle(costs)
    return costs


@each_period
def test_every_limit_admits_its_burst_and_has_it_again_after_a_period(period_ms: int) -> None:
    """All 10,000 of them: at once, short of one, and one too many; and the interval is exact."""
    rng = random.Random(period_ms)
    for limit in LIMITS:
        strategy = Gcra(limit, period_ms)
        now = instants(rng, period_ms)
        steps = strategy.interval_ms * 2048
        assert steps == period_ms * 2048 // limit
        assert strategy.tolerance_ms * 2048 == steps * limit <= period_ms * 2048
        outcome = strategy.check(None, now, limit)
        spent, decision, ttl_ms = outcome.state, outcome.result, outcome.ttl_ms
        assert (decision.allowed, decision.remaining) == (True, 0)
        assert Fraction(spent) == now + Fraction(int(steps) * limit, 2048)
        assert ttl_ms <= period_ms
        assert not strategy.check(None, now, limit + 1).result.allowed
        assert not strategy.check(spent, now, 1).result.allowed
        assert strategy.check(spent, now + period_ms, limit).result.allowed
        if limit > 1:
            nearly = strategy.check(None, now, limit - 1)
            assert (nearly.result.allowed, nearly.result.remaining) == (True, 1)
            last = strategy.check(nearly.state, now, 1)
            assert (last.result.allowed, last.result.remaining) == (True, 0)
            assert last.state == spent


@each_period
def test_the_rate_is_at_most_half_a_percent_too_fast(period_ms: int) -> None:
    """And never too slow. Finer ones are refused, by a message that names what to take."""
    most = period_ms * 2048 // 200
    for limit in (*LIMITS, most):
        exact = Fraction(period_ms, limit)
        interval = Fraction(Gcra(limit, period_ms).interval_ms)
        assert 0 <= exact - interval < Fraction(1, 2048)
        assert exact / interval <= Fraction(1_005, 1_000)
    for limit in (most + 1, 2 * most, 2**50):
        with pytest.raises(ConfigInvalidError, match=r"use token_bucket\(.*or at most"):
            gcra(limit, period_ms)


@pytest.mark.parametrize("path", PATHS)
@each_period
def test_every_limit_admits_its_burst_through_a_limiter(path: str, period_ms: int) -> None:
    """What was shown of the strategy holds for what users call, compiled or not. Interpreted it is
    the strategy itself that decides, so there one in seven will do."""
    rng = random.Random(f"every {path} {period_ms}")
    clock, store = ManualClock(), make_store(path)
    for limit in LIMITS if path == "native" else some(LIMITS, one_in=7):
        clock.set(instants(rng, period_ms))
        check = make_limiter(path, gcra(limit, period_ms), clock, store).check
        key = str(limit)
        assert [check(key, limit).allowed, check(key).allowed] == [True, False]
        clock.advance(period_ms)
        assert check(key, limit).allowed


@pytest.mark.parametrize("path", PATHS)
@each_period
def test_one_by_one_a_cold_key_admits_exactly_its_burst(path: str, period_ms: int) -> None:
    """Every small limit and some large ones, at any instant, on the compiled and the plain path."""
    rng = random.Random(f"{path} {period_ms}")
    every, large = (600, 30) if path == "native" else (150, 4)
    limits = [*range(1, every), *rng.sample(LIMITS, large), 5_000, 9_999, 10_000]
    clock = ManualClock()
    for limit in limits:
        clock.set(instants(rng, period_ms))
        check = make_limiter(path, gcra(limit, period_ms), clock).check
        assert sum(check("k").allowed for _ in range(limit)) == limit
        denied = check("k")
        assert not denied.allowed
        assert denied.remaining == 0
        clock.advance(period_ms)
        assert check("k", limit).remaining == 0


@pytest.mark.parametrize("path", PATHS)
@each_period
def test_in_any_mixture_of_costs_a_cold_key_admits_exactly_its_burst(
    path: str, period_ms: int
) -> None:
    """Bursts below and above the limit too."""
    rng = random.Random(f"mixed {path} {period_ms}")
    clock = ManualClock()
    for _ in range(400):
        limit = rng.choice(LIMITS)
        burst = rng.choice((limit, rng.randint(1, limit), rng.randint(1, 3 * limit)))
        clock.set(instants(rng, 3 * period_ms))
        limiter = make_limiter(path, gcra(limit, period_ms, burst), clock)
        left = burst
        for cost in portions(rng, burst):
            assert not limiter.check("k", left + 1).allowed
            left -= cost
            assert limiter.check("k", cost).remaining == left
            assert limiter.forecast("k").spendable_now == left
        assert left == 0
        assert not limiter.check("k").allowed


@pytest.fixture(scope="module", params=SERVERS)
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with connected(request.param) as client:
        yield client


def test_lua_computes_the_same_interval_for_every_limit(client: redis.Redis) -> None:
    """By the very line of the file, in the server's doubles."""
    line = re.search(r"local function intervalOf.*\n", Gcra.lua_sources[0].text)
    assert line is not None
    for period_ms in PERIODS.values():
        texts = client.eval(
            f"""
            local floor, intervals = math.floor, {{}}
            {line[0]}
            for limit = 1, {LIMITS[-1]} do
              local interval = intervalOf({{periodMs = {period_ms}, limit = limit}})
              intervals[limit] = string.format('%.17g', interval)
            end
            return intervals
            """,
            0,
        )
        assert list(map(float, texts)) == [Gcra(limit, period_ms).interval_ms for limit in LIMITS]


def test_lua_admits_exactly_the_burst(client: redis.Redis) -> None:
    """At once for every limit up to 1,000 and every seventh above, one by one and in portions for
    a sample."""
    rng = random.Random("lua")
    limits = rng.sample(LIMITS, 60)
    jobs: list[tuple[int, int, Sequence[int]]] = []
    for period_ms in PERIODS.values():
        jobs += [(limit, period_ms, [limit]) for limit in (*LIMITS[:1_000], *LIMITS[1_000::7])]
        jobs += [(limit, period_ms, [1] * limit) for limit in (*range(1, 60), 97, 333)]
        jobs += [(limit, period_ms, portions(rng, limit)) for limit in limits]
    requests = []
    for number, (limit, period_ms, costs) in enumerate(jobs):
        strategy, key, now = gcra(limit, period_ms), f"exact:{number}", instants(rng, period_ms)
        requests += [(key, strategy, now, cost) for cost in (*costs, 1)]
        requests.append((key, strategy, now + period_ms, limit))
    replies = iter(check_all(client, requests))
    for job in jobs:
        left = limit = job[0]
        for cost in job[2]:
            left -= cost
            assert next(replies)[:3] == (1, limit, left), job
        assert next(replies)[:3] == (0, limit, 0), job
        assert next(replies)[:3] == (1, limit, 0), job


def test_lua_for_many_keys_admits_exactly_the_burst(client: redis.Redis) -> None:
    """The script for many has an arithmetic of its own."""
    rng = random.Random("many")
    for number in range(40):
        limit, period_ms = rng.choice(LIMITS), rng.choice(list(PERIODS.values()))
        keys, strategy = [f"many:{number}:{n}" for n in range(5)], gcra(limit, period_ms)
        now = instants(rng, period_ms)
        for cost in portions(rng, limit, 10):
            assert all(reply[0] for reply in check_many(client, strategy, keys, now, cost))
        assert not any(reply[0] for reply in check_many(client, strategy, keys, now, 1))


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("7/second", gcra(7, 1_000)),
        ("5000/second", gcra(5_000, 1_000)),
        ("10240/second", gcra(10_240, 1_000)),
        ("10241/second", token_bucket(10_241, 10_241)),
        ("1000000/minute", token_bucket(1_000_000, 1_000_000 / 60)),
        ("1000000/week", gcra(1_000_000, 604_800_000)),
        ("11/1ms", token_bucket(11, 11_000)),
    ],
)
def test_a_rate_is_paced_by_what_can_space_it(text: str, strategy: Gcra) -> None:
    """GCRA as long as its grid allows, then the token bucket of the same burst and rate."""
    clock = ManualClock(1_700_000_000_000)
    limiter = rate_limit(text, clock=clock)
    assert repr(limiter.strategy) == repr(strategy)
    assert limiter.check("k", strategy.limit).allowed
    assert not limiter.check("k").allowed


def test_the_worst_minute_is_what_the_docs_say() -> None:
    """Twice the limit less one with the default burst: spent at once, then one per interval."""
    for limit, period_ms, burst, most in (
        (100, 60_000, 100, 199),
        (100, 60_000, 10, 109),
        (7, 1_000, 7, 13),
        (2_047, 60_000, 2_047, 4_093),
        (5_000, 1_000, 5_000, 10_002),
    ):
        clock = ManualClock(1_700_000_000_000)
        limiter = rate_limit(gcra(limit, period_ms, burst), clock=clock)
        admitted = sum(limiter.check("k").allowed for _ in range(burst))
        for _ in range(period_ms - 1):
            clock.advance(1)
            while limiter.check("k").allowed:
                admitted += 1
        assert admitted == most
