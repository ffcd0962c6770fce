"""The pages on web frameworks run as they stand, and so do the examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.integrations import django_project  # noqa: F401 - the pages about Django need one
from tests.servers.process import REPO

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# The line that proves the point of each example. A slow machine is given a unit of the larger limit
# back, or a second of the smaller one, on the way: see `_told`.
SHOWS = {
    "aiohttp_app.py": '/search 429 "__main__.search";r=0;t=30, "app";r=96;t=1',
    "asgi_app.py": '/search 429 "search";r=0;t=30, "all";r=96;t=1',
    "django_app.py": '/search 429 "__main__.search";r=0;t=30, "app";r=96;t=1',
    "drf_app.py": '/uploads 429 "uploads";r=0;t=30, "anon";r=97;t=1',
    "fastapi_app.py": '/search?text=penstock 429 "search";r=0;t=30, "app";r=96;t=1',
    "flask_app.py": '/search 429 "search";r=0;t=30, "app";r=96;t=1',
    "litestar_app.py": '/search 429 "search";r=0;t=30, "app";r=96;t=1',
    "quart_app.py": '/search 429 "search";r=0;t=30, "app";r=96;t=1',
}
PAGES = ["docs/web.md", *sorted(f"docs/web/{page.name}" for page in REPO.glob("docs/web/*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_as_it_stands(page: str) -> None:
    """Every block, in order, in one namespace. No request is made, so no Redis is needed."""
    text = (REPO / page).read_text(encoding="utf-8")
    world: dict[str, Any] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        program = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(program, page, "exec"), world)


def test_every_example_is_listed_here() -> None:
    """A new example comes with the line that it is to print."""
    assert sorted(path.name for path in (REPO / "examples/web").glob("*.py")) == sorted(SHOWS)


@pytest.mark.parametrize("example", sorted(SHOWS))
def test_the_example_shows_what_it_says(example: str) -> None:
    """As a program of its own."""
    child = subprocess.run(
        [sys.executable, "-W", "error", str(REPO / "examples/web" / example)],
        env={**os.environ, "PYTHONPATH": str(REPO / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert _told(SHOWS[example]) in _told(child.stdout)


def _told(text: str) -> str:
    """Without the numbers that time changes."""
    return re.sub(r'("(?:all|anon|app)";r=)\d+|;t=\d+', r"\1", text)
