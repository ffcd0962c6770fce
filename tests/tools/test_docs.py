"""The documentation site: what is wrong in it ends the build, and what it adds is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.process import REPO
from tools.docs.links import broken_links
from tools.docs.pages import navigation, with_images

CONF = """
import sys
sys.path[:0] = [{root!r}, {here!r}]
extensions = ["myst_parser", "sphinx.ext.autodoc", "tools.docs.api", "tools.docs.pages"]
root_doc = "index"
myst_heading_anchors = 3
api_package, api_folder = "small", "api"
default_role = "name"
autodoc_default_options = {{"members": True, "undoc-members": True}}
"""
INDEX = """# A site

## Guides

- [A page](page.md)

## Reference

- The API
"""
SMALL = '''"""A package."""

from .inner import Thing

__all__ = ["Thing", "act"]


def act(thing: Thing) -> int:
    """Does something with a `Thing`, by `Thing.go`."""
    return thing.go()
'''
INNER = '''"""Where it is defined."""


class Thing:
    """A thing of a `size`."""

    size: int = 1

    def go(self) -> int:
        """Goes."""
        return 1
'''


class Project:
    """A small site with a small package, good as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "out"
        (folder / "small").mkdir()
        self.write("conf.py", CONF.format(root=str(REPO), here=str(folder)))
        self.write("index.md", INDEX)
        self.write("page.md", "# A page\n\nBack to [the index](index.md#guides).\n")
        self.write("small/__init__.py", SMALL)
        self.write("small/inner.py", INNER)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def build(self) -> subprocess.CompletedProcess[str]:
        words = ["-q", "-W", "--keep-going", "-E", str(self.folder), str(self.site)]
        return subprocess.run(
            [sys.executable, "-m", "sphinx", *words], capture_output=True, text=True, check=False
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_good_site_is_built_with_links_between_names(project: Project) -> None:
    """A name is described under the module that lists it, and found from annotations and text."""
    done = project.build()
    assert done.returncode == 0, done.stderr
    assert broken_links(project.site) == []
    page = (project.site / "api" / "small.html").read_text()
    assert 'id="small.Thing"' in page
    assert 'id="small.Thing.go"' in page
    # From the signature, from the text, and from the text to a member.
    assert len(re.findall(r'href="#small\.Thing"', page)) >= 3
    assert 'href="#small.Thing.go" title="small.Thing.go"' in page
    navigated = re.findall(r'class="caption-text">(\w+)', (project.site / "index.html").read_text())
    assert navigated == ["Guides", "Reference"]


FAULTS = {
    "page.md": "# A page\n\n[gone](gone.md) [gone](index.md#nowhere) ![gone](gone.png)\n",
    "orphan.md": "# On no list\n",
    "small/inner.py": INNER.replace('"""Goes."""', "pass").replace("`size`", "size"),
    "small/__init__.py": SMALL.replace('"act"', '"act", "X"') + "\nX = 1\n",
}
TOLD = (
    "gone.md",
    "nowhere",
    "gone.png",
    "orphan.md",
    "small.Thing.go has no docstring",
    "small.Thing.size has no docstring",
    "small.X has no docstring",
)


def test_what_is_wrong_ends_the_build(project: Project) -> None:
    """Links, pages that nobody finds, and public names without a word about them."""
    for name, text in FAULTS.items():
        project.write(name, text)
    done = project.build()
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    missed = [told for told in TOLD if not any(told in line for line in warnings)]
    assert missed == []
    assert len(warnings) == len(TOLD)


def test_one_warning_is_enough_to_end_the_build(project: Project) -> None:
    """The mildest of them: a field that nobody explains."""
    project.write("small/inner.py", INNER.replace("`size`", "size"))
    done = project.build()
    assert done.returncode != 0
    assert done.stderr.count("WARNING") == 1


def test_links_of_the_built_site_are_followed(tmp_path: Path) -> None:
    """Pages, anchors, pictures for each screen; not those to the world outside."""
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a> <a href="b.html#gone">2</a> <a href="gone.html">3</a>'
        '<a href="#here" id="here">4</a> <a href="https://example.com/x">5</a>'
        '<img src="gone.png"> <source srcset="pic.png 1x, gone-dark.png 2x"> <a href="pic.png?v=1">'
    )
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    (tmp_path / "pic.png").touch()
    assert broken_links(tmp_path) == [
        "a.html: b.html#gone",
        "a.html: gone.html",
        "a.html: gone.png",
        "a.html: gone-dark.png",
    ]


def test_the_index_orders_the_pages() -> None:
    """Section by section; text that is no entry of a list is left alone."""
    index = "# T\n\n## One\n\n- [b](b.md): text\n- [a](d/a.md)\n\n## Two\n\n- no link\n\n## Three\n"
    found = navigation(index, {"Two": "api/index"})
    assert re.findall(r":caption: (\w+)\n\n(.*?)\n```", found, re.DOTALL) == [
        ("One", "b\nd/a"),
        ("Two", "api/index"),
    ]


def test_pictures_become_images_for_both_screens() -> None:
    """All of those in the pages: none is left as HTML, whose files nobody would copy."""
    for page in [*(REPO / "docs").rglob("*.md"), *(REPO / "proofs").glob("*.md")]:
        text = page.read_text()
        made = with_images(text)
        assert "<picture" not in made, page
        assert made.count("only-dark") == text.count("<picture>"), page


def test_what_the_pages_import_is_in_the_reference() -> None:
    """Whoever follows a guide finds the name that it uses."""
    code = "from tools.docs.api import Reference; print('\\n'.join(Reference('penstock').places))"
    listed = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout.split()
    pages = [REPO / "README.md", *(REPO / "docs").rglob("*.md"), *REPO.glob("examples/*.py")]
    used = {
        f"{module}.{name.split(' as ')[0].strip()}"
        for page in pages
        for module, plain, bracketed in re.findall(
            r"^from (penstock[\w.]*) import (?:([\w ,]+)$|\(([^)]*)\))",
            page.read_text(),
            re.MULTILINE,
        )
        for name in (plain or bracketed).split(",")
        if name.strip()
    }
    # The messages of the wire are described by their proto.
    used = {name for name in used if not name.startswith("penstock.wire.proto")}
    assert len(used) > 20
    assert used - set(listed) == set()
