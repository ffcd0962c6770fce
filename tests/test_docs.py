"""What the pages say is so: their links lead somewhere, their Python runs, their targets exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.cli import COMMANDS
from penstock.config import parse_policies
from penstock.core._errors import EXTRAS
from tests.servers.process import REPO
from tests.stores.redis.live import url_of

FOLDERS = ("bench", "proofs", "wire")
PAGES = sorted(
    [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")]
    + [page for folder in FOLDERS for page in (REPO / folder).glob("*.md")]
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)|(?:src|srcset)=\"([^\"]+)\"")


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """Files and pictures, and headings where one is named."""
    for target, heading, picture in LINK.findall(page.read_text()):
        path = target or picture
        if "://" in path:
            continue
        there = page.parent / path
        assert there.exists(), path
        if heading:
            titles = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in slugs, f"{path}#{heading}"


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Block by block, with a real server in the place of localhost."""
    blocks = _blocks(REPO / "README.md", "python")
    assert len(blocks) == 6
    for block in blocks:
        exec(block.replace("redis://localhost:6379", url_of("valkey")), {})


def test_the_first_hour_runs_as_it_stands() -> None:
    """All of its Python, as one program, with a real server in the place of localhost."""
    page = REPO / "docs" / "start.md"
    program = "\n".join(_blocks(page, "python"))
    assert "redis://localhost:6379" in program
    exec(program.replace("redis://localhost:6379", url_of("valkey")), {})
    (policies,) = _blocks(page, "yaml")
    assert list(parse_policies(policies).policies) == ["api"]


def test_the_readme_names_targets_and_commands_that_exist() -> None:
    """`make X` is in the Makefile, `penstock X` a command."""
    text = (REPO / "README.md").read_text()
    makefile = (REPO / "Makefile").read_text()
    targets = re.findall(r"^make ([\w-]+)$|`make ([\w-]+)`", text, re.MULTILINE)
    assert targets
    for plain, quoted in targets:
        assert re.search(rf"^{plain or quoted}:", makefile, re.MULTILINE)
    commands = re.findall(r"(?:^|`)penstock ([a-z-]+)", text, re.MULTILINE)
    assert commands
    assert set(commands) <= set(COMMANDS)


def test_nobody_is_told_to_install_from_an_index() -> None:
    """The package is on none: lines name a clone, or the packages of an extra."""
    places = [*PAGES, *(REPO / "src").rglob("*.py"), *(REPO / "examples").rglob("*.*")]
    found = [
        f"{place.relative_to(REPO)}: {line.strip()}"
        for place in places
        for line in place.read_text(errors="replace").splitlines()
        if re.search(r"pip install .*['\" ]penstock\b(?!-\*)", line)
    ]
    assert found == []


def test_every_extra_is_on_the_page_about_installing() -> None:
    """And no other."""
    text = (REPO / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.MULTILINE)
    assert re.findall(r"\w+", " ".join(rows)) == [*EXTRAS, "all"]
