"""Every example runs as a script, quickly, and says what it set out to show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

# The line that proves the point of each example.
SHOWS = {
    "any_function.py": "alice has to wait 30 s",
    "celery_tasks.py": "['acme', 'acme', 'acme', 'other']\none after the other: True",
    "custom_store.py": "denied 0 left",
    "custom_strategy.py": "second 2: wait 1000 ms",
    "grpc_limits.py": "without: RESOURCE_EXHAUSTED",
    "llm_tokens.py": "40 answered, 2 refused on purpose, 0 refused by limits",
    "outgoing_clients.py": "9 requests, spaced by one limit: True",
    "outgoing_http.py": "request 3: 429\nrequest 4: 200\nrequest 5: 200\n"
    "left alone for a second after the refusal: True",
    "outgoing_calls.py": "not within 10 s: the next report is due in 30 s",
    "task_queue.py": "250 ms apart: True\nthe other tenant did not wait for all of them: True",
    "web_handler.py": "429, 0 left, retry after 12 s",
}
ELSEWHERE = {"arq_jobs.py"}
"""Those that need a server: tests/integrations/test_tasks.py runs them."""


def run(example: str, *, pure: bool) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PENSTOCK_PURE": str(int(pure))}
    child = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / example)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_every_example_is_listed_here() -> None:
    """A new example comes with the line that it is to print."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == SHOWS.keys() | ELSEWHERE


# A worker of Celery takes seconds to stop, and which path decides is nothing to it.
RUNS = [(name, pure) for name in sorted(SHOWS) for pure in (False, True)]
RUNS.remove(("celery_tasks.py", True))


@pytest.mark.parametrize(("example", "pure"), RUNS)
def test_the_example_shows_what_it_says(example: str, pure: bool) -> None:
    """The same output on both paths."""
    assert SHOWS[example] in run(example, pure=pure)
