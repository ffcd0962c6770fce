"""The guide to a store of one's own: its example is the real thing."""

from __future__ import annotations

import re
from typing import Any

from tests.servers.process import REPO

GUIDE = REPO / "docs" / "write-your-own-store.md"


def _examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_example_of_the_guide_runs_and_conforms() -> None:
    """Every block, in order, in one namespace; then the test that it defines."""
    world: dict[str, Any] = {}
    for block in _examples():
        exec(compile(block, str(GUIDE), "exec"), world)
    world["test_my_store_conforms"]()


def test_a_shelf_that_forgets_to_compare_is_caught() -> None:
    """The kit that the guide recommends finds the mistake that the guide warns of."""
    import pytest

    from penstock.testkit import ConformanceError, run_store_conformance

    world: dict[str, Any] = {}
    for block in _examples():
        exec(compile(block, str(GUIDE), "exec"), world)

    class Careless(world["Shelf"]):  # type: ignore[misc]
        def write(self, key: str, value: Any, version: int) -> bool:
            return bool(super().write(key, value, self.read(key)[1]))

    with pytest.raises(ConformanceError, match="applies atomically"):
        run_store_conformance(lambda: world["ShelfStore"](Careless()))
