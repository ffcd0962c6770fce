"""Policy files, read out: every kind of policy in a sentence that says what it allows."""

from __future__ import annotations

import pytest

from penstock import (
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    slots,
    token_bucket,
)
from penstock.config import in_words, parse_policies
from penstock.core._strategy import Strategy


def words(text: str) -> str:
    body = "\n".join(f"    {line}" for line in text.splitlines())
    return in_words(parse_policies(f"version: 1\nlimiters:\n  api:\n{body}\n").policies["api"])


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (gcra(100, 60_000), "100 a minute"),
        (gcra(1_000, 3_600_000, 20), "1,000 an hour, 20 at once"),
        (gcra(5, 900_000), "5 per 15 minutes"),
        (gcra(7, 1_500), "7 per 1,500 ms"),
        (token_bucket(50_000, 800), "800 a second, 50,000 at once"),
        (token_bucket(10, 2.5), "2.5 a second, 10 at once"),
        (token_bucket(30, 0.5), "30 a minute, 30 at once"),
        (token_bucket(30, 0.1), "6 a minute, 30 at once"),
        (token_bucket(5, 0.00001), "0.864 a day, 5 at once"),
        (fixed_window(3, 604_800_000), "3 a week"),
        (sliding_window(5, 900_000), "5 in any 15 minutes"),
        (sliding_window_log(5, 1_000), "5 in any second"),
        (calendar_quota(10_000, "month", "Europe/Berlin"), "10,000 a month in Europe/Berlin"),
        (calendar_quota(9, "month", starts_on=15), "9 a month in UTC, from day 15"),
        (calendar_quota(9, "hour"), "9 an hour in UTC"),
        (slots(1_000), "1,000 at once"),
    ],
)
def test_a_strategy_says_what_it_grants(strategy: Strategy, said: str) -> None:
    """In round units, with commas between thousands."""
    assert strategy.in_words() == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strategy: gcra\nlimit: 100\nperiod: 1m\nburst: 20", "100 a minute per key, 20 at once"),
        ("tokenBudget: {budget: 200000, window: 1h}", "200,000 tokens an hour per key"),
        ("concurrency: {minLimit: 4, maxLimit: 2000}", "4 to 2,000 in flight"),
        ("concurrency: {minLimit: 8, maxLimit: 8, perKey: true}", "8 in flight per key"),
        (
            "concurrency: {minLimit: 1, maxLimit: 9}\nstrategy: fixedWindow\nlimit: 5\nwindow: 1d\n"
            "tokenBudget: {budget: 1000000, window: 1d}",
            "1 to 9 in flight, 5 a day per key, 1,000,000 tokens a day per key",
        ),
        (
            "strategy: fixedWindow\nlimit: 5000\nwindow: 1m\ntwoTier: {batch: 100}\n"
            "federated: {batch: 1000}",
            "5,000 a minute per key, leased by 100, leased to clients by at most 1,000",
        ),
        (
            "strategy: gcra\nlimit: 50\nperiod: 1s\ntwoTier: {mode: cached-deny}",
            "50 a second per key, denials cached on each node",
        ),
    ],
)
def test_a_policy_of_one_limit_is_one_sentence(text: str, said: str) -> None:
    """Its axes in the order in which they are asked."""
    assert words(text) == said


USER = "user: {by: user, strategy: gcra, limit: 100, period: 1m, burst: 20%s}"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", ""),
        (", cost: tokens", ", counted in tokens"),
        (", optional: true", ", if user is told"),
        (", cost: tokens, optional: true", ", counted in tokens, if user and tokens are told"),
        (", when: {method: [POST, PUT]}", ", when method is POST or PUT"),
        (
            ", when: {trial: {exists: true}, plan: {exists: false}}",
            ", when trial is told and plan is missing",
        ),
    ],
)
def test_a_limit_says_to_whom_by_what_and_when(more: str, said: str) -> None:
    """After its rate, in the words of the file."""
    sentence = f"user: 100 a minute per user, 20 at once{said}"
    assert words(f"limits:\n  {USER % more}") == sentence


def test_a_shadow_says_so_and_a_limit_without_a_key_is_for_all() -> None:
    """Lines in the order of the file."""
    text = f"limits:\n  {USER % ', shadow: true'}\n"
    text += "  all: {strategy: fixedWindow, limit: 5000, window: 1s}\n"
    text += "  flight: {by: tenant, strategy: slots, limit: 20}"
    assert words(text).splitlines() == [
        "user (shadow): 100 a minute per user, 20 at once",
        "all: 5,000 a second for all together",
        "flight: 20 at once per tenant",
    ]


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ("{limit: 1000}", "1,000"),
        ("{burst: 50}", "50 at once"),
        ("{limit: 1000, burst: 50}", "1,000 a minute, 50 at once"),
        ("{limit: 500, burst: 500}", "500 a minute"),
        ("{limit: 100}", "100 a minute, 20 at once"),
        ("unlimited", "unlimited"),
    ],
)
def test_a_plan_and_an_override_say_what_is_different(figures: str, said: str) -> None:
    """In as few words as tell it."""
    limits = f"limits:\n  {USER % ''}\n"
    base = "user: 100 a minute per user, 20 at once"
    assert words(f"{limits}plans: {{pro: {{user: {figures}}}}}") == f"{base}; pro: {said}"
    override = f"{limits}overrides: {{user: {{alice: {figures}}}}}"
    assert words(override) == f"{base}; user alice: {said}"


def test_thousands_of_overrides_stay_one_sentence() -> None:
    """The first few, and how many more there are; no key can break the line."""
    keys = ", ".join(f'"k{n}\\n{"x" * 90}": {{limit: 7}}' for n in range(3_000))
    (line,) = words(f"limits:\n  {USER % ''}\noverrides: {{user: {{{keys}}}}}").splitlines()
    assert line.endswith("; 2,995 more keys")
    assert len(line) < 400
