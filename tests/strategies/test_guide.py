"""The guide to a strategy of one's own: its example is the real thing."""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from penstock import ManualClock, MemoryStore, rate_limit
from penstock.config import parse_policies
from penstock.core._register import register
from penstock.testkit import draw_strategy, temporarily_registered
from tests.servers.process import REPO
from tests.stores.redis.live import open_empty, url_of
from tests.support.helpers import draw_timeline

GUIDE = (REPO / "docs" / "write-your-own-strategy.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of the guide, in a folder with its Lua."""
    (tmp_path / "limits.py").write_text(blocks("python")[0])
    (tmp_path / "limits.lua").write_text(blocks("lua")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    with temporarily_registered():
        yield importlib.import_module("limits")
    del sys.modules["limits"]


def test_the_policy_of_the_guide_is_one(limits: ModuleType) -> None:
    """With the strategy of the guide."""
    (text,) = blocks("yaml")
    strategy = parse_policies(text).policies["uploads"].strategy
    assert type(strategy) is limits.LeakyBucket
    assert strategy.values == {"capacity": 5, "leak_every_ms": 600}


def test_the_proof_of_the_guide_holds(limits: ModuleType) -> None:
    """The test that it defines passes on a real server."""
    world: dict[str, object] = {}
    program = blocks("python")[1]
    assert "redis://localhost:6379/9" in program
    exec(program.replace("redis://localhost:6379/9", f"{url_of('valkey')}/9"), world)
    world["test_the_lua_decides_as_the_python"]()  # type: ignore[operator]


def test_its_lua_agrees_with_its_python(limits: ModuleType) -> None:
    """Over random parameters and instants."""
    rng = random.Random(1)
    register(limits.LeakyBucket)
    store, clock = open_empty("valkey"), ManualClock()
    for number in range(60):
        strategy = draw_strategy(limits.LeakyBucket, rng)
        there, here = (
            rate_limit(strategy, store=each, clock=clock, prefix=f"p{number}")
            for each in (store, MemoryStore())
        )
        for now, cost in draw_timeline(strategy, rng, 20):
            clock.set(now)
            assert there.check("k", cost) == here.check("k", cost), (strategy, now, cost)
            assert there.peek("k") == here.peek("k")
    store.close()


def test_the_guide_names_what_the_scripts_may_use() -> None:
    """All of it, and nothing else."""
    prelude = (REPO / "src" / "penstock" / "core" / "scripts" / "prelude.lua").read_text()
    at_hand = set()
    for names in re.findall(r"^local (?!function)([\w, ]+) =", prelude, re.MULTILINE):
        at_hand |= set(names.split(", "))
    at_hand |= set(re.findall(r"^local function (\w+)", prelude, re.MULTILINE))
    missing = {name for name in at_hand if not re.search(rf"`{name}[`(]", GUIDE)}
    assert missing == set()
