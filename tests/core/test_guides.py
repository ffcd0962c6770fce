"""The guides whose Python runs as it stands, page by page."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.servers.process import REPO
from tests.stores.redis.live import PATIENT_MS, url_of

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOCALHOST = '"redis://localhost:6379"'


PAGES = (
    "functions",
    "outgoing",
    "language-models",
    "grpc-interceptors",
    "several-limits",
    "metering-tokens",
)


@pytest.mark.parametrize("page", PAGES)
def test_a_guide_runs_as_it_stands(page: str) -> None:
    """Every block, in order, in one namespace, with a real server in the place of localhost."""
    path = REPO / "docs" / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert blocks
    world: dict[str, Any] = {}
    for block in blocks:
        # On the lines that it has on the page, for whoever reads a failure.
        program = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        if LOCALHOST in program:
            url = f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"
            program = program.replace(LOCALHOST, repr(url))
        exec(compile(program, str(path), "exec"), world)
