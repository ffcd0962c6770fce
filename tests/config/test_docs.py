"""The documents say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.config import parse_policies
from penstock.config._policies import BOUNDS, BUDGET, LAWS, SLOTS
from penstock.config._reader import camel
from penstock.core._register import registered
from penstock.service._inline import DEFAULT_STRATEGY, inline_strategies
from tools.docs.tables import PAGES, derived

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name: str, language: str) -> list[str]:
    text = (DOCS / name).read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for named, block in fenced if named == language]


@pytest.mark.parametrize(
    "text", [text for name in ("policies.md", "admission.md") for text in blocks(name, "yaml")]
)
def test_every_example_of_a_policy_file_is_one(text: str) -> None:
    """Copied into a file, it works."""
    assert parse_policies(text).policies


def _said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["check-config", *words]) == 0
    return capsys.readouterr().out


def test_the_worked_example_is_read_out_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last of its steps; none of them is warned of."""
    monkeypatch.chdir(tmp_path)
    steps = [text for text in blocks("policies.md", "yaml") if "  chat:" in text]
    assert len(steps) == 4
    assert [parse_policies(text).warnings for text in steps] == [()] * 4
    Path("penstock.yaml").write_text(steps[-1])
    assert _said(capsys, "penstock.yaml") in blocks("policies.md", "")


def test_the_page_on_changes_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files are good, its Python runs, and the comparison is what it says."""
    monkeypatch.chdir(tmp_path)
    files = blocks("changing-limits.md", "yaml")
    for text in files:
        assert parse_policies(text).policies
    for name, text in zip(("old.yaml", "new.yaml"), files, strict=False):
        Path(name).write_text(text)
    (told,) = blocks("changing-limits.md", "")
    assert _said(capsys, "--against", "old.yaml", "new.yaml").endswith(told)
    for program in blocks("changing-limits.md", "python"):
        exec(program, {})


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
