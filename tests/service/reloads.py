"""A service and the policy file that it follows, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import ManualClock
from penstock.config import load_policy_file
from penstock.service import Service, build_service
from penstock.service._reloading import Reloader
from tests.service.worlds import NOW


def text(limit: int = 3, more: str = "") -> str:
    return f"version: 1\nlimiters:\n  api: {{strategy: gcra, limit: {limit}, period: 1h}}\n{more}"


class World:
    """A service that follows a file, and the file."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder / "penstock.yaml"
        self.path.write_text(text())
        self.clock = ManualClock(NOW)
        self.service: Service = build_service(
            load_policy_file(self.path), clock=self.clock, **options
        )
        self.reloader = Reloader(self.service, str(self.path), every_s=0.01)

    def limit(self) -> int:
        return self.service.policies["api"].limit
