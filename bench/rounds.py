"""Interleaved rounds: every contender once per round, in shuffled order; medians over rounds.

Whatever the machine does to one contender it does, over the rounds, to all of them, and the
median forgets the rounds that something else spoilt. The workers take turns: only one of them
measures at any time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from statistics import median
from types import TracebackType
from typing import Any

from .contenders import Contender
from .probes import Sample
from .scenarios import Scenario

__all__ = ["Row", "child_environment", "run_rounds"]

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """The result of one contender: medians, or why there is none."""

    contender: str
    answer: str
    ratio: float | None
    call_ns: float | None
    base_ns: float | None
    note: str = ""


def child_environment(contender: Contender) -> dict[str, str]:
    """This process's environment, with the compiled path switched as the contender wants it."""
    kept = {name: value for name, value in os.environ.items() if name != "PENSTOCK_PURE"}
    return kept | ({"PENSTOCK_PURE": "1"} if contender.pure else {})


class _Worker:
    def __init__(self, scenario: Scenario, contender: Contender) -> None:
        self.contender = contender
        self.samples: list[Sample] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", scenario.name, contender.name],
            env=child_environment(contender),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.note = ""

    def meet(self) -> None:
        """Wait until it is ready. If it cannot take part, `note` says why."""
        hello = self._hear()
        self.note = hello.get("error", "")
        ours = self.contender.package == "penstock" and not self.contender.pure
        if ours and not self.note and not hello["accelerated"]:
            self.note = "the native extension is not built"

    def measure(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.samples.append(Sample(**self._hear()))

    def row(self) -> Row:
        name, answer = self.contender.name, self.contender.answer
        if self.note:
            return Row(name, answer, None, None, None, self.note)
        return Row(
            name,
            answer,
            median(sample.ratio for sample in self.samples),
            median(sample.call_ns for sample in self.samples),
            median(sample.base_ns for sample in self.samples),
        )

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker of {self.contender.name} died; its error is above")
        message: dict[str, Any] = json.loads(line)
        return message

    def __enter__(self) -> _Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()


def run_rounds(scenario: Scenario, rounds: int, progress: Progress) -> list[Row]:
    """All rounds of one scenario. The workers are made ready one after the other."""
    with ExitStack() as stack:
        workers: list[_Worker] = []
        for contender in scenario.contenders():
            progress(f"preparing {contender.name}")
            worker = stack.enter_context(_Worker(scenario, contender))
            worker.meet()
            workers.append(worker)
        able = [worker for worker in workers if not worker.note]
        order = Random(scenario.name)
        for number in range(1, rounds + 1):
            order.shuffle(able)
            for worker in able:
                progress(f"round {number} of {rounds}: {worker.contender.name}")
                worker.measure()
        return [worker.row() for worker in workers]
