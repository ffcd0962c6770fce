"""Lines of the log: one per event, and not without end."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from penstock.service import _logs as logs
from penstock.service._logs import LINES_PER_SPAN, SPAN_S, RepeatFilter

SCRIPT = """
import logging
from penstock.service._logs import set_up_logs
set_up_logs("json")
for server in ("penstock.http", "penstock.service.grpc"):
    log = logging.getLogger(server)
    for number in range(1000):
        log.error("a request failed", exc_info=ZeroDivisionError(str(number)))
    log.error("something else")
    log.info("and this is no trouble")
"""


def test_a_fault_that_repeats_is_logged_a_few_times() -> None:
    """By each server that has it; other lines are not held back by it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    for server in ("penstock.http", "penstock.service.grpc"):
        said = [line["message"] for line in lines if line["logger"] == server]
        faults = [text for text in said if text.startswith("a request failed")]
        assert len(faults) == LINES_PER_SPAN
        assert faults[0] == "a request failed (ZeroDivisionError: 0)"
        assert said[-2:] == ["something else", "and this is no trouble"]


class Seen(logging.Handler):
    """Keeps what passes the filter."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(RepeatFilter())
        self.left_out: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.left_out.append(getattr(record, "left_out", 0))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    at = [100.0]
    monkeypatch.setattr(logs, "monotonic", lambda: at[0])
    return at


def record(text: str, level: int = logging.ERROR, *args: object) -> logging.LogRecord:
    return logging.LogRecord("penstock", level, __file__, 1, text, args, None)


def test_the_next_line_says_how_many_were_left_out(now: list[float]) -> None:
    """When the span is over, and once."""
    seen = Seen()
    for number in range(LINES_PER_SPAN + 7):
        seen.handle(record("trouble with %s", logging.WARNING, number))
    now[0] += SPAN_S
    seen.handle(record("trouble with %s", logging.WARNING, "x"))
    seen.handle(record("trouble with %s", logging.WARNING, "x"))
    assert seen.left_out == [0] * LINES_PER_SPAN + [7, 0]


def test_what_is_no_trouble_is_never_left_out(now: list[float]) -> None:
    """However often it is said."""
    seen = Seen()
    for _ in range(100):
        seen.handle(record("hello", logging.INFO))
    assert len(seen.left_out) == 100


def test_kinds_without_end_are_bounded_too(now: list[float]) -> None:
    """In memory and in lines; later there is room for others."""
    seen = Seen()
    for number in range(10_000):
        seen.handle(record(f"trouble {number}"))
    assert len(seen.left_out) < 1_000
    now[0] += SPAN_S
    before = len(seen.left_out)
    seen.handle(record("something new"))
    assert len(seen.left_out) == before + 1


@pytest.mark.parametrize(
    "text",
    [
        "Exception in callback <method of <Server object at {0:#x}>>({0})\nhandle: <Handle {0}>",
        "Task exception was never retrieved\nfuture: <Task name='Task-{0}' coro=<f() at {0:#x}>>",
        "Fatal write error on socket transport for 'client {0}'",
    ],
)
def test_messages_that_differ_in_addresses_and_numbers_are_of_one_kind(
    text: str, now: list[float]
) -> None:
    """asyncio formats objects into its messages before it logs them."""
    seen = Seen()
    for number in range(1_000):
        seen.handle(record(text.format(0x7F00_0000_0000 + number)))
    assert len(seen.left_out) == LINES_PER_SPAN


def test_messages_with_different_words_are_of_different_kinds(now: list[float]) -> None:
    seen = Seen()
    for text in ("the store is away", "the store is full"):
        for _ in range(LINES_PER_SPAN + 1):
            seen.handle(record(text))
    assert len(seen.left_out) == 2 * LINES_PER_SPAN
