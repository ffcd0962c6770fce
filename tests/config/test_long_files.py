"""Policy files with thousands of policies: read by the compiled reader, parsed by another process,
kept as texts."""

from __future__ import annotations

import importlib
import pickle
import shutil
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from penstock import ConfigInvalidError, register
from penstock.config import PolicyFile, load_policy_file, names_with, parse_policies
from penstock.config import _loading as apart
from penstock.config._loading import parse_apart, parse_policy_file
from penstock.testkit import temporarily_registered
from tests.service.worlds import FILE

KINDS = (
    "{strategy: gcra, limit: 5, period: 1m}",
    "{strategy: tokenBucket, capacity: 5, refillPerSec: 0.5, fail: closed}",
    "{tokenBudget: {budget: 100, window: 1m, maxKeys: 7}}",
    "{concurrency: {minLimit: 2, maxLimit: 9, law: aimd, timeoutMs: 20}}",
    "{strategy: fixed_window, limit: 5, window_ms: 60000, two_tier: {batch: 3}}",
)


def long_file(more: str = "") -> bytes:
    lines = (f"  p{number}: {KINDS[number % len(KINDS)]}\n" for number in range(1_000))
    return f"version: 1\ndefaults: {{prefix: long}}\nlimiters:\n{''.join(lines)}{more}".encode()


def test_another_process_parses_as_this_one_does() -> None:
    """Down to the digest."""
    raw = long_file()
    file = parse_apart(raw, "p.yaml")
    here = parse_policy_file(raw, "p.yaml")
    assert (file.prefix, file.source, file.digest) == ("long", "p.yaml", here.digest)
    assert repr(list(file.policies.items())) == repr(list(here.policies.items()))


@pytest.mark.parametrize(
    "more",
    [
        "  bad: {strategy: gkra, limit: 5, period: 1m}\n",
        "  p7: {strategy: gcra, limit: 5, period: 1m}\n",
        "  bad: [1\n",
        "  bad: {strategy: gcra, limit: 5, period: 2024-01-01}\n",
    ],
)
def test_what_another_process_refuses_is_told_in_the_same_words(more: str) -> None:
    """File, line, path inside the file and what would be right."""
    raw = long_file(more)
    with pytest.raises(ConfigInvalidError) as here:
        parse_policy_file(raw, "p.yaml")
    with pytest.raises(ConfigInvalidError) as there:
        parse_apart(raw, "p.yaml")
    assert str(there.value) == str(here.value)
    assert "p.yaml, line 100" in str(there.value)


def test_a_process_that_does_not_come_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it ends too early or not at all; without one the file is parsed here."""
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    for text, told in (("exit 3", "ended with 3"), ("exec sleep 60", "not parsed within 0.1 s")):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o700)
        monkeypatch.setattr(apart, "_PARSE_S", 20 if "exit" in text else 0.1)
        with pytest.raises(OSError, match=told):
            parse_apart(long_file(), "p.yaml")
    monkeypatch.setattr(sys, "executable", "")
    assert len(parse_apart(long_file(), "p.yaml").policies) == 1_000


def both_readers(text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the compiled reader and the other one make of a text."""
    assert hasattr(yaml, "CSafeLoader")
    found = []
    for _ in range(2):
        try:
            found.append(repr(parse_policies(text, "p.yaml")))
        except ConfigInvalidError as error:
            found.append(str(error))
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    return found


@pytest.mark.parametrize(
    "text",
    [
        FILE,
        "version: 1\nlimiters: &all\n  a: &a {strategy: gcra, limit: 5, period: 1m}\n  b: *a\n",
        "version: 1\nlimiters:\n"
        "  a: &a {strategy: gcra, limit: 5, period: 1m}\n  b: {<<: *a, limit: 6}\n",
        "version: 1\nlimiters:\n"
        "  a: &a {strategy: gcra, limit: 5, period: 1m}\n  b: {<<: *a, limit: 6, limit: 7}\n",
        "version: 1\nlimiters:\n  a: {strategy: gcra, limit: 5, limit: 6, period: 1m}\n",
        "version: 1\nlimiters:\n  a: {strategy: gcra, limit: '5', period: 1m}\n",
        "version: 1\nlimiters:\n  a: [strategy\n",
        "[" * 100_000,
        "{a: " * 100_000 + "1" + "}" * 100_000,
        "- " * 100_000 + "a",
        "? " * 100_000 + "a",
    ],
    ids=range(11),
)
def test_the_compiled_reader_says_what_the_other_says(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is good and of what is not, however deep it is nested."""
    compiled, other = both_readers(text, monkeypatch)
    if "nested too deeply" in other:
        assert "nested too deeply" in compiled
    else:
        assert compiled == other


@pytest.mark.parametrize("is_shared", [False, True])
def test_twenty_thousand_policies_with_plans_are_one_file(tmp_path: Path, is_shared: bool) -> None:
    """Of more than a million bytes where each stands for itself, or by aliases."""
    held = (
        "{limits: {all: {strategy: gcra, limit: 5, period: 1m}}, plans: {pro: {all: {limit: 6}}}}"
    )
    lines = [f"  first: &first {held}\n"]
    lines += [f"  policy-{at}: {'*first' if is_shared else held}\n" for at in range(20_000)]
    path = tmp_path / "penstock.yaml"
    path.write_text(f"version: 1\nlimiters:\n{''.join(lines)}")
    policies = load_policy_file(path).policies
    assert len(policies) == 20_001
    several = policies["policy-19999"].several
    assert several is not None
    figures = several.plans["pro"]["all"]
    assert figures is not None
    assert figures.limit == 6


def test_aliases_cannot_stand_for_more_than_any_file_needs() -> None:
    """A few lines that stand for a thousand million values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for number in range(1, 10):
        inner = ", ".join([f"*a{number - 1}"] * 10)
        lines.append(f"a{number}: &a{number} [{inner}]")
    with pytest.raises(ConfigInvalidError, match=r"line 7: a6.* more than 2,000,000 values"):
        parse_policies("\n".join(lines), "p.yaml")


@pytest.fixture
def lazy() -> PolicyFile:
    return parse_policy_file(long_file(), "p.yaml")


def test_policies_are_a_mapping_like_any_other(lazy: PolicyFile) -> None:
    """Also on the way to another process, where they take little room."""
    packed = pickle.dumps(lazy)
    assert len(packed) < 200_000
    assert pickle.loads(packed) == lazy
    for file in (lazy, pickle.loads(packed)):
        assert len(file.policies) == 1_000
        assert list(file.policies)[:2] == ["p0", "p1"]
        assert "p0" in file.policies
        assert "nope" not in file.policies
        assert file.policies.get("nope") is None
        assert file.policies["p0"].limit == 5
        with pytest.raises(KeyError):
            file.policies["nope"]


def test_policies_are_found_by_what_they_have(lazy: PolicyFile) -> None:
    """In either spelling, and whether they are kept as texts or not."""
    built = dict(lazy.policies)
    for field, first in (("concurrency", "p3"), ("two_tier", "p4"), ("fail", "p1")):
        names = names_with(lazy.policies, field)
        assert names[0] == first
        assert len(names) == 200
        assert names_with(built, field) == names
    named = "version: 1\nlimiters: {concurrency: {strategy: gcra, limit: 5, period: 1m}}"
    assert names_with(parse_policies(named).policies, "concurrency") == []


TOY = """
print("hello", flush=True)
from penstock import Parameter, Strategy


class Toy(Strategy):
    name = "toy_bucket"
    parameters = (Parameter("size", "count"),)

    def check(self, state, now, cost):
        raise NotImplementedError


class Outer:
    class Toy(Toy):
        name = "toy_bucket"
"""
OF_THE_TOY = "  toy: {strategy: toyBucket, size: 5}\n"


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A user's module."""
    (tmp_path / "toys_of_a_user.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    with temporarily_registered():
        yield importlib.import_module("toys_of_a_user")
    del sys.modules["toys_of_a_user"]


def parsed_elsewhere(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> PolicyFile:
    def here(_raw: bytes, _source: str) -> PolicyFile:
        raise AssertionError("it was parsed in this process")

    with monkeypatch.context() as patched:
        patched.setattr(apart, "parse_policy_file", here)
        return parse_apart(raw, "p.yaml")


@pytest.mark.parametrize("name", ["Toy", "Outer.Toy"])
def test_another_process_finds_strategies_of_a_user(
    toys: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of their modules and classes, whatever the modules print."""
    register(attrgetter(name)(toys))
    file = parsed_elsewhere(long_file(OF_THE_TOY), monkeypatch)
    assert repr(file.policies["toy"].strategy) == "toy_bucket(size=5)"
    with pytest.raises(ConfigInvalidError, match=r"limiters.toy.size: must be a whole number"):
        parsed_elsewhere(long_file(OF_THE_TOY.replace("5", "0")), monkeypatch)


def test_a_strategy_that_another_process_cannot_find_is_parsed_here(
    toys: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has no name by which it could, or whose module is not there any more."""
    hidden = type("Hidden", (toys.Toy,), {"name": "toy_bucket", "__module__": toys.__name__})
    raw = long_file(OF_THE_TOY)
    with temporarily_registered(hidden):
        assert parse_apart(raw, "p.yaml").policies["toy"].limit == 0
        with pytest.raises(AssertionError, match="in this process"):
            parsed_elsewhere(raw, monkeypatch)
    register(toys.Toy)
    (tmp_path / "toys_of_a_user.py").write_text("1 / 0\n")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert len(parse_apart(raw, "p.yaml").policies) == 1_001
    with pytest.raises(AssertionError, match="in this process"):
        parsed_elsewhere(raw, monkeypatch)
