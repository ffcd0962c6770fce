"""The documents say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.config import parse_policies
from penstock.config.policies import _BOUNDS, _BUDGET, _LAWS, _SLOTS
from penstock.config.reader import camel
from penstock.core.strategy import registered

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name: str, language: str) -> list[str]:
    text = (DOCS / name).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("text", blocks("policies.md", "yaml"))
def test_every_example_of_a_policy_file_is_one(text: str) -> None:
    """Copied into a file, it works."""
    assert parse_policies(text).policies


def test_every_key_of_a_policy_is_documented() -> None:
    """In camelCase; the forms in milliseconds follow from the rule."""
    text = (DOCS / "policies.md").read_text(encoding="utf-8")
    names = {*_BOUNDS, *_BUDGET, *_SLOTS, "fail", "prefix", "version"}
    names.update(name for group in _LAWS.values() for name in group)
    for cls in registered():
        names |= {cls.name, *(each.name.removesuffix("_ms") for each in cls.parameters)}
    spelled = {camel(name) for name in names if not name.endswith("_ms")}
    assert {name for name in spelled if name not in text} == set()


def test_the_examples_of_admission_run(capsys: pytest.CaptureFixture[str]) -> None:
    """As one program, from top to bottom."""
    exec("\n".join(blocks("admission.md", "python")), {})
    assert capsys.readouterr().out == ""
