"""What a policy file may say, and what it is told when it says something else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    ConfigInvalidError,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.concurrency import Aimd, Gradient
from penstock.config import ConcurrencySpec, PolicySpec, parse_policies


def policy(text: str, source: str = "p.yaml") -> PolicySpec:
    """The one policy whose body is `text`."""
    body = "\n".join(f"    {line}" for line in text.splitlines())
    return parse_policies(f"version: 1\nlimiters:\n  api:\n{body}\n", source).policies["api"]


def refusal(text: str, source: str = "p.yaml") -> str:
    with pytest.raises(ConfigInvalidError) as caught:
        parse_policies(text, source)
    assert caught.value.code == "config_invalid"
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("strategy: gcra\nlimit: 100\nperiod: 1m", gcra(100, 60_000)),
        ("strategy: gcra\nlimit: 100\nperiodMs: 500\nburst: 7", gcra(100, 500, 7)),
        ("strategy: tokenBucket\ncapacity: 10\nrefillPerSec: 2.5", token_bucket(10, 2.5)),
        ("strategy: token_bucket\ncapacity: 10\nrefill_per_sec: 2", token_bucket(10, 2)),
        ("strategy: fixedWindow\nlimit: 5\nwindow: 1h", fixed_window(5, 3_600_000)),
        (
            "strategy: fixed_window\nlimit: 5\nwindow_ms: 9\nanchor: first",
            fixed_window(5, 9, "first"),
        ),
        ("strategy: slidingWindow\nlimit: 5\nwindow: 500ms", sliding_window(5, 500)),
        ("strategy: slidingWindow\nlimit: 5\nwindow: 1d\nbuckets: 3", None),
        ("strategy: slidingWindowLog\nlimit: 5\nwindow: 30s", sliding_window_log(5, 30_000)),
    ],
)
def test_each_strategy_is_built_with_its_parameters(text: str, strategy: Any) -> None:
    """In both spellings, with durations as text and as numbers."""
    built = policy(text)
    assert built.kind == "limiter"
    assert repr(built.strategy) == repr(strategy or sliding_window(5, 86_400_000, 3))


def test_a_budget_is_a_policy_of_its_own_kind() -> None:
    """With a bound on its keys, if wanted."""
    built = policy("tokenBudget: {budget: 1000, windowMs: 60000, maxKeys: 50}\nfail: closed")
    assert built.kind == "budget"
    assert repr(built.budget) == "token_budget(budget=1000, window_ms=60000)"
    assert (built.max_keys, built.fail, built.limit, built.window_ms) == (
        50,
        "closed",
        1000,
        60_000,
    )


def test_slots_alone_are_an_admission_policy() -> None:
    """The gradient law by default."""
    built = policy("concurrency: {minLimit: 2, maxLimit: 9, tolerance: 1.5, samples: 70}")
    assert built.kind == "admission"
    assert built.concurrency == ConcurrencySpec(Gradient(2, 9, tolerance=1.5, samples=70))
    assert built.limit == 9


def test_slots_with_something_beside_them_are_unified() -> None:
    """A strategy, a budget or both."""
    slots = "concurrency: {min_limit: 1, max_limit: 4, law: aimd, timeout: 1s, lease_ttl: 5s}"
    rate = "strategy: gcra\nlimit: 3\nperiod: 1m"
    budget = "tokenBudget: {budget: 9, window: 1m}"
    for text in (f"{slots}\n{rate}", f"{slots}\n{budget}", f"{slots}\n{rate}\n{budget}"):
        built = policy(text)
        assert built.kind == "unified"
        law = Aimd(1, 4, timeout_ms=1_000)
        assert built.concurrency == ConcurrencySpec(law, lease_ttl_ms=5_000)


def test_json_says_the_same_as_yaml() -> None:
    """A file whose name ends in .json needs no YAML library."""
    held = {"strategy": "gcra", "limit": 3, "period": "1m", "fail": "error"}
    document = {"version": 1, "defaults": {"prefix": "shop"}, "limiters": {"api": held}}
    text = json.dumps(document)
    assert repr(parse_policies(text, "p.json")) == repr(parse_policies(text, "p.yaml")).replace(
        "p.yaml", "p.json"
    )
    assert parse_policies(text, "p.json").prefix == "shop"


def test_anchors_and_merges_work_as_in_any_yaml() -> None:
    """A mapping's own keys win over those it merges."""
    file = parse_policies(
        "version: 1\nlimiters:\n  a: &a {strategy: gcra, limit: 3, period: 1m}\n"
        "  b: {<<: *a, limit: 4}\n  c: *a\n",
        "p.yaml",
    )
    assert [spec.limit for spec in file.policies.values()] == [3, 4, 3]


API = "version: 1\nlimiters:\n  api:\n    strategy: gcra\n    limit: 3\n"
WINDOW = "version: 1\nlimiters:\n  api:\n    strategy: fixedWindow\n    limit: 3\n"
SLOTS = "version: 1\nlimiters:\n  api:\n    concurrency:\n"

REFUSALS = {
    "no version": ("limiters: {}", "p.yaml, line 1: version: is missing"),
    "another version": ("version: 2\nlimiters: {}", "version: must be 1"),
    "no policies": ("version: 1", "limiters: is missing"),
    "empty policies": ("version: 1\nlimiters: {}", "line 2: limiters: must be a mapping with at"),
    "unknown at the top": (
        "version: 1\nlimits: {}",
        "limits: is not known here; did you",
    ),
    "not a mapping": ("[]", "p.yaml, line 1: must be a mapping with version, defaults, limiters"),
    "empty file": ("", "p.yaml: must be a mapping"),
    "broken yaml": ("a: [1", "p.yaml, line 1: is not valid YAML"),
    "two documents": ("a: 1\n---\nb: 1", "is not valid YAML"),
    "unknown key": (
        f"{API}    perod: 1m",
        "line 6: limiters.api.perod: is not known here; did",
    ),
    "unknown key in snake case": (f"{WINDOW}    window_m: 1", "did you mean window_ms?"),
    "another strategy's key": (
        f"{API}    period: 1m\n    window: 1m",
        "limiters.api.window: is n",
    ),
    "missing field": (API, "line 3: limiters.api.period: is missing; write for example period: 1m"),
    "number for duration": (f"{API}    period: 60", "goes under periodMs"),
    "bad duration": (f"{API}    period: 1 fortnight", "line 6: limiters.api.period: a duration is"),
    "text for number": (
        f"{API}    periodMs: '60'",
        "limiters.api.periodMs: must be a whole",
    ),
    "true for number": (f"{API}    periodMs: true", "not true"),
    "zero": (f"{API}    periodMs: 0", "must be a whole number from 1 to"),
    "same key twice": (f"{API}    limit: 4", "line 6: limiters.api.limit: is given twice"),
    "both spellings": (f"{WINDOW}    windowMs: 4\n    window_ms: 4", "is given twice, as windowMs"),
    "both forms": (f"{WINDOW}    window: 1m\n    windowMs: 4", "is given twice, as windowMs too"),
    "unknown strategy": (API.replace("gcra", "gkra"), "limiters.api.strategy: must be one of gcra"),
    "no kind": ("version: 1\nlimiters: {api: {limit: 3}}", "limiters.api.strategy: is missing"),
    "two kinds": (
        f"{API}    period: 1m\n    tokenBudget: {{budget: 1, window: 1m}}",
        "line 7: limiters.api.tokenBudget: cannot be used with a strategy in one policy",
    ),
    "bad fail mode": (f"{API}    period: 1m\n    fail: shut", "must be one of open, closed, error"),
    "bad anchor": (f"{WINDOW}    window: 1m\n    anchor: frist", "did you mean first?"),
    "policy not a mapping": ("version: 1\nlimiters: {api: 3}", "limiters.api: must be a mapping"),
    "policy's name": ("version: 1\nlimiters: {a b: {}}", "limiters.a b: a policy's name is text"),
    "number for a name": (
        "version: 1\nlimiters: {3: {}}",
        "limiters.3: a policy's name is text; put it in quotes",
    ),
    "a name in use": ("version: 1\nlimiters: {inline: {}}", "reserved by the service"),
    "prefix": ("version: 1\ndefaults: {prefix: 3}\nlimiters: {a: 1}", "a: must be a mapping"),
    "no min limit": (f"{SLOTS}      maxLimit: 3", "api.concurrency.minLimit: is missing"),
    "bounds": (
        f"{SLOTS}      minLimit: 4\n      maxLimit: 3",
        "min_limit must be at most",
    ),
    "unknown law": (f"{SLOTS}      law: aimdd", "concurrency.law: must be one of gradient, aimd"),
    "another law's key": (f"{SLOTS}      law: aimd\n      tolerance: 2", "tolerance: is not known"),
    "per key": (
        f"{SLOTS}      minLimit: 1\n      maxLimit: 3\n      perKey: 1",
        "must be true or false",
    ),
    "endless rate": (
        "version: 1\nlimiters: {a: {strategy: tokenBucket, capacity: 1, refillPerSec: .inf}}",
        "line 2: limiters.a: refill_per_sec must be a finite number",
    ),
    "a number that some read as octal": (
        f"{API.replace('3', '010')}    period: 1m",
        "line 5: limiters.api.limit: some readers of YAML take 010 for another number; write it "
        "without",
    ),
    "a number in base sixty": (
        f"{API}    periodMs: 1:30",
        "line 6: limiters.api.periodMs: some readers of YAML take 1:30 for a number and some for "
        "text; put",
    ),
    "a key with a zero in front": (
        "version: 1\nlimiters: {007: {}}",
        "line 2: limiters: some readers of YAML take 007 for another number; write it without",
    ),
    "no for a name": (
        "version: 1\nlimiters: {no: {}}",
        "limiters.False: a policy's name is text; put it in quotes",
    ),
    "a date for a duration": (f"{API}    period: 2024-01-01", "such as '1m', not 2024-01-01;"),
    "code": ("!!python/object:os.system {}", "a policy file is plain data"),
    "alias of itself": ("a: &a [*a]", "nested too deeply"),
    "list as a key": ("? [a]\n: 1", "has a key that is not text"),
    "a line break in a key": ('"a\\nb": 1', "'a\\nb': is not known here"),
    "a tag that does not fit": (
        f"{API}    periodMs: !!bool foo",
        "line 6: limiters.api.periodMs: has the tag !!bool, which does not fit 'foo'; leave",
    ),
    "a date that is none": (
        f"{API}    period: !!timestamp abc",
        "limiters.api.period: has the tag",
    ),
    "an empty number": (f'{API}    periodMs: !!int ""', "limiters.api.periodMs: has the tag !!int"),
    "an empty float": (f'{API}    periodMs: !!float ""', "limiters.api.periodMs: has the tag"),
    "a made-up tag": (f"{API}    period: !minutes 1", "limiters.api.period: has the tag !minutes"),
    "a tag on a key": (f"{API}    !!bool foo: 1", "line 6: limiters.api: has the tag !!bool"),
    "no character": (f'{API}    period: "\\UFFFFFFFF"', "line 6: has an escape that stands for no"),
    "a giant": (f"{API}    periodMs: 0x{'f' * 9_000}", "not a number of more than 60 digits"),
}


@pytest.mark.parametrize(("text", "told"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_is_wrong_is_named_with_its_place_and_remedy(text: str, told: str) -> None:
    """File, line, path inside the file and what would be right."""
    message = refusal(text)
    assert message.startswith("p.yaml")
    assert told in message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "p.json, line 1: is not valid JSON"),
        ('{"a": 1, "a": 2}', "p.json: a: is given twice"),
        ('{"limiters": {"api": [{"limit": 1, "limit": 2}]}}', "limiters.api.0.limit: is given"),
        ('{"version": NaN}', "NaN is not a number"),
        ("[" * 100_000, "nested too deeply"),
        ('{"version": 1' + "0" * 5_000 + "}", "not valid JSON"),
        ('{"version": 1, "limiters": {"a": {"strategy": "gcra"}}}', "limiters.a.limit: is missing"),
    ],
)
def test_json_is_read_as_strictly(text: str, told: str) -> None:
    """With a line where the parser knows one."""
    assert told in refusal(text, "p.json")


TAGS = ("bool", "int", "float", "timestamp", "binary", "null", "str", "map", "set", "omap", "x")


@given(tag=st.sampled_from(TAGS), text=st.text(alphabet="0a:-.x_", max_size=6))
def test_no_tag_breaks_the_reader(tag: str, text: str) -> None:
    """The library fails in its own ways on text that a tag does not fit."""
    assert refusal(f'version: 1\nlimiters: {{api: !!{tag} "{text}"}}').startswith("p.yaml")


NAMES = ("strategy", "limit", "window", "concurrency", "tokenBudget", "budget", "minLimit", "x")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(("gcra", "fixedWindow", "1m")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("source", ["p.json", "p.yaml"])
@given(value=json_values)
def test_no_shape_of_data_gets_past_validation_or_breaks_it(source: str, value: Any) -> None:
    """Anything is either a policy or refused as one, with a reason."""
    try:
        parse_policies(json.dumps({"version": 1, "limiters": {"api": value}}), source)
    except ConfigInvalidError as error:
        reason = str(error)
        assert reason.startswith(source)


@pytest.mark.parametrize("source", ["p.json", "p.yaml"])
@given(text=st.text(max_size=200))
def test_no_text_breaks_the_reader(source: str, text: str) -> None:
    """Random text is refused like any other mistake."""
    assert refusal(text, source).startswith(source)
