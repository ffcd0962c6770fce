"""The JSON Schema of a policy file: it accepts what is good, and refuses what an editor can see."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from penstock import ConfigInvalidError
from penstock.config import parse_policies
from penstock.config._policies import BOUNDS, BUDGET, LAWS, SLOTS, TWO_TIER
from penstock.config._reader import camel
from penstock.config._schema import policy_schema, schema_text
from penstock.core._register import temporarily_registered
from penstock.core._strategy import Parameter
from penstock.strategies import Gcra
from tests.config import test_policies, test_several
from tests.config.test_several import LIMITS, ONE, PLANS
from tools.docs.tables import SCHEMA

ROOT = Path(__file__).parents[2]
SCHEMAS: dict[str, Any] = policy_schema()


def is_valid(document: Any) -> bool:
    return bool(Draft202012Validator(SCHEMAS).is_valid(document))


def api(text: str) -> Any:
    return {"version": 1, "limiters": {"api": yaml.safe_load(text)}}


def cases(module: Any, test: str) -> list[tuple[Any, ...]]:
    """What a parametrized test is given."""
    return [tuple(case) for case in getattr(module, test).pytestmark[0].args[1]]


DOCUMENTS = [
    text
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for text in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    if "limiters:" in text and page.name != "write-your-own-strategy.md"
]
GOOD = [
    *DOCUMENTS,
    *((ROOT / "examples").rglob("*.yaml")),
]


def test_the_schema_is_one() -> None:
    """By the rules of its draft."""
    Draft202012Validator.check_schema(SCHEMAS)


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_every_example_is_accepted(text: str | Path) -> None:
    """Of the docs and of the examples."""
    text = text if isinstance(text, str) else text.read_text(encoding="utf-8")
    assert parse_policies(text).policies
    assert is_valid(yaml.safe_load(text))


POLICIES = [
    *(case[0] for case in cases(test_policies, "test_each_strategy_is_built_with_its_parameters")),
    LIMITS,
    LIMITS + PLANS,
    ONE,
    f"{ONE}plans: {{free: {{}}}}\nfail: closed",
    "tokenBudget: {budget: 1000, windowMs: 60000, maxKeys: 50}\nfail: closed",
    "token_budget: {budget: 1000, window: 1 Hour}\nfederated: {batch: 5}",
    "concurrency: {minLimit: 2, maxLimit: 9, tolerance: 1.5, samples: 70}",
    "concurrency: {min_limit: 2, max_limit: 9, law: aimd, timeout_ms: 70, per_key: true}",
    "concurrency: {minLimit: 2, maxLimit: 9}\ntokenBudget: {budget: 1, window: 1m}\n"
    "strategy: gcra\nlimit: 1\nperiod: minute",
    "strategy: fixedWindow\nlimit: 9\nwindow: 1m\ntwoTier: {mode: leased, batch: 2, lowWater: 1}",
]


@pytest.mark.parametrize("text", POLICIES)
def test_every_kind_of_policy_is_accepted(text: str) -> None:
    """In both spellings."""
    assert test_policies.policy(text)
    assert is_valid(api(text))


# What only the reader can see: names that must agree, figures that need their strategy, and keys
# that are no text, which YAML has and JSON has not.
BEYOND = (
    "is used as text elsewhere",
    "is not a limit of this policy",
    "has no `by`",
    "plans.7:",
    "user.7:",
)


@pytest.mark.parametrize(
    ("text", "told"), cases(test_several, "test_what_is_wrong_is_told_with_its_place")
)
def test_what_is_wrong_with_several_limits_is_refused(text: str, told: str) -> None:
    """All that can be seen without looking elsewhere in the file."""
    if not any(part in told for part in BEYOND):
        assert not is_valid(api(text))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "limiters: {}\nversion: 1",
        "version: 2\nlimiters: {a: {strategy: gcra, limit: 1, period: 1s}}",
        "version: 1\nlimiters: {inline: {strategy: gcra, limit: 1, period: 1s}}",
        "version: 1\nlimiters: {'a b': {strategy: gcra, limit: 1, period: 1s}}",
        "version: 1\nlimiter: {a: {strategy: gcra, limit: 1, period: 1s}}",
        "version: 1\ndefaults: {prefix: 3}\nlimiters: {a: {strategy: gcra, limit: 1, period: 1s}}",
        *(
            f"version: 1\nlimiters: {{a: {policy}}}"
            for policy in (
                "{}",
                "7",
                "{strategy: gcar, limit: 1, period: 1s}",
                "{strategy: gcra, period: 1s}",
                "{strategy: gcra, limit: 1}",
                "{strategy: gcra, limit: 0, period: 1s}",
                "{strategy: gcra, limit: true, period: 1s}",
                "{strategy: gcra, limit: '1', period: 1s}",
                "{strategy: gcra, limit: 1, period: 60}",
                "{strategy: gcra, limit: 1, period: 1 parsec}",
                "{strategy: gcra, limit: 1, period: 1s, periodMs: 1000}",
                "{strategy: gcra, limit: 1, period: 1s, window: 1s}",
                "{strategy: gcra, limit: 1, period: 1s, fail: never}",
                "{strategy: gcra, limit: 1, period: 1s, federated: {batch: 1}}",
                "{strategy: gcra, limit: 1, period: 1s, tokenBudget: {budget: 1, window: 1s}}",
                "{strategy: fixedWindow, limit: 1, window: 1s, anchor: now}",
                "{strategy: slots, limit: 1}",
                "{limit: 1, period: 1s}",
                "{tokenBudget: {budget: 1}}",
                "{tokenBudget: {budget: 1, window: 1s}, twoTier: {}}",
                "{concurrency: {minLimit: 1}}",
                "{concurrency: {minLimit: 1, maxLimit: 2, law: tcp}}",
                "{concurrency: {minLimit: 1, maxLimit: 2, timeout: 1s}}",
                "{concurrency: {minLimit: 1, maxLimit: 2}, federated: {batch: 1}}",
            )
        ),
    ],
)
def test_structural_mistakes_are_refused(text: str) -> None:
    """As the reader does."""
    with pytest.raises(ConfigInvalidError):
        parse_policies(text)
    assert not is_valid(yaml.safe_load(text))


def test_every_name_that_the_reader_knows_is_in_it() -> None:
    """In both spellings."""
    text = schema_text()
    laws = [name for names in LAWS.values() for name in names]
    for name in (*BOUNDS, *BUDGET, *SLOTS, *TWO_TIER, *laws):
        assert f'"{name}": {{' in text
        assert f'"{camel(name)}": {{' in text


def test_the_published_schema_is_up_to_date() -> None:
    """`make wire` writes it."""
    assert SCHEMA.read_text(encoding="utf-8") == schema_text()


class Trickle(Gcra):
    """One of a user's own, with a parameter that no other has."""

    name = "trickle"
    parameters = (*Gcra.parameters, Parameter("drops", "count", "a word", default=3, high=9))

    def __init__(self, drops: int = 3, **values: Any) -> None:
        super().__init__(**values)


def test_a_strategy_of_ones_own_is_known_to_it() -> None:
    """Once it is registered, with its parameters."""
    good = api("strategy: trickle\nlimit: 1\nperiod: 1s\ndrops: 9")
    with temporarily_registered(Trickle):
        assert Draft202012Validator(policy_schema()).is_valid(good)
        good["limiters"]["api"]["drops"] = 10
        assert not Draft202012Validator(policy_schema()).is_valid(good)
    assert "trickle" not in json.dumps(policy_schema())
