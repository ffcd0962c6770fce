"""One run's results: the verdicts, the JSON that is kept, and the environment it came from."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .contenders import CONTENDERS
from .memory import MemoryRow
from .rounds import Row
from .scenarios import INTERPRETED, NATIVE, SCENARIOS

__all__ = ["RESULTS", "Results", "Verdict"]

RESULTS = Path(__file__).parent / "results" / "latest.json"

MAX_BYTES_PER_KEY = 200
MAX_LEFT = 0.05


@dataclass(frozen=True)
class Verdict:
    """One promise, and what was measured for it."""

    promise: str
    bound: float
    measured: float
    unit: str = ""
    strict: bool = False

    @property
    def kept(self) -> bool:
        return self.measured < self.bound if self.strict else self.measured <= self.bound


@dataclass
class Results:
    """What one run measured, by scenario name; `curve` by number of keys."""

    quick: bool
    environment: dict[str, Any] = field(default_factory=lambda: _environment())
    ratios: dict[str, list[Row]] = field(default_factory=dict)
    memory_keys: int = 0
    memory: list[MemoryRow] = field(default_factory=list)
    curve: dict[int, list[Row]] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """The promises that this run touched. A quick run's memory is too small to judge."""
        found = []
        for name, rows in self.ratios.items():
            scenario = SCENARIOS[name]
            found += [
                Verdict(
                    f"{scenario.title}: {row.contender}",
                    scenario.bounds[row.contender],
                    row.ratio,
                    f"x {scenario.baseline}",
                    strict=row.contender == INTERPRETED,
                )
                for row in rows
                if row.contender in scenario.bounds and row.ratio is not None
            ]
        for held in [] if self.quick else self.memory:
            if held.contender == NATIVE and held.bytes_per_key and held.left is not None:
                title = f"{self.memory_keys:,} keys"
                found += [
                    Verdict(f"{title}: memory", MAX_BYTES_PER_KEY, held.bytes_per_key, "bytes/key"),
                    Verdict(
                        f"{title}: left after expiry", MAX_LEFT * 100, held.left * 100, "%", True
                    ),
                ]
        return found

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        verdicts = [asdict(verdict) | {"kept": verdict.kept} for verdict in self.verdicts()]
        document = asdict(self) | {"verdicts": verdicts}
        path.write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        document = json.loads(path.read_text())
        return cls(
            document["quick"],
            document["environment"],
            {name: _rows(rows) for name, rows in document["ratios"].items()},
            document["memory_keys"],
            [MemoryRow(**row) for row in document["memory"]],
            {int(size): _rows(rows) for size, rows in document["curve"].items()},
        )


def _rows(rows: list[dict[str, Any]]) -> list[Row]:
    return [Row(**row) for row in rows]


def _environment() -> dict[str, Any]:
    packages = sorted({contender.package for contender in CONTENDERS.values()} - {"penstock"})
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": {package: _version(package) for package in packages},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
