"""The documents say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.config import parse_policies
from penstock.config._policies import BOUNDS, BUDGET, LAWS, SLOTS
from penstock.config._reader import camel
from penstock.core._strategy import registered
from penstock.service._inline import DEFAULT_STRATEGY, inline_strategies
from tools.docs.tables import PAGES, derived

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
    names = {*BOUNDS, *BUDGET, *SLOTS, "fail", "prefix", "version"}
    names.update(name for group in LAWS.values() for name in group)
    for cls in registered():
        names |= {cls.name, *(each.name.removesuffix("_ms") for each in cls.parameters)}
    spelled = {camel(name) for name in names if not name.endswith("_ms")}
    assert {name for name in spelled if name not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_that_follow_from_the_code_are_up_to_date(page: Path) -> None:
    """`make wire` writes them."""
    text = page.read_text(encoding="utf-8")
    assert "<!-- derived: " in text
    assert derived(text) == text


def test_every_strategy_has_a_section_that_begins_with_its_signature() -> None:
    """As it is declared: parameters in order, and their defaults."""
    text = (DOCS / "strategies.md").read_text(encoding="utf-8")
    for cls in registered():
        given = (
            each.name if each.is_required else f"{each.name}={json.dumps(each.default)}"
            for each in cls.parameters
        )
        signature = f"{cls.name}({', '.join(given)})".replace("null", "None")
        assert f"\n## {cls.name}\n\n`{signature}` " in text


def test_every_strategy_that_a_request_may_bring_along_is_listed() -> None:
    """In the row about it; the default is the first."""
    text = (DOCS / "http.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| `strategy` |"))
    names = re.findall(r"`(\w+)`", row)[1:]
    assert names[0] == DEFAULT_STRATEGY
    assert set(names) == {cls.name for cls in inline_strategies()}


def test_the_examples_of_admission_run(capsys: pytest.CaptureFixture[str]) -> None:
    """As one program, from top to bottom."""
    exec("\n".join(blocks("admission.md", "python")), {})
    assert capsys.readouterr().out == ""
