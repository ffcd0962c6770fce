"""Who adds a strategy touches `strategies/` and, for native speed, `accel/`: nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import penstock
from penstock.core._register import registered
from tests.servers.process import REPO

ROOT = Path(penstock.__file__).parent
AT_HOME = ("strategies", "accel")

# Modules that name an algorithm because they want that one, and why.
WANTED = {
    "__init__.py": "offers the factories",
    "_declared.py": "an example in a message",
    "_limits.py": "an example in a docstring",
    "_rate_limit.py": "a rate in words is paced by one of them, and its docstring compares",
    "adapters/_headers.py": "an example in a docstring",
    "config/_model.py": "what is served without a policy file",
    "config/_several.py": "what only a limit among several can be, and an example in a docstring",
    "config/_warnings.py": "what to say in the place of a burst above the limit",
    "integrations/_pacing.py": "a limit that is only paused",
    "integrations/language_models.py": "a rate of tokens gets a burst for the longest call",
    "service/_charge_records.py": "the count of the open charges of a key",
    "service/_inline.py": "what an inline request gets that names none",
    "service/_fail_modes.py": "a probe that is always admitted and has to be written",
    "stores/redis/_plans.py": "what to use where too many units would be kept one by one",
    "cli/_bench.py": "a limit that is never reached, to measure the rest",
    "core/_limiter.py": "an example in a message",
    "core/_strategy.py": "what to use where something is to be booked ahead",
}


def names() -> list[str]:
    """All spellings: of the class, of the factory, in Python and on the wire."""
    built_in = [cls for cls in registered() if cls.__module__.startswith("penstock.")]
    return [name for cls in built_in for name in (cls.__name__, cls.name, cls.wire_name)]


def test_no_module_outside_names_a_strategy_without_a_reason() -> None:
    """Comments, messages and Lua included; a reason that is not needed any more goes."""
    named = re.compile(rf"\b_?({'|'.join(names())})(?:\b|_)", re.IGNORECASE)
    found = set()
    for path in [*ROOT.rglob("*.py"), *ROOT.rglob("*.lua"), *ROOT.rglob("*.js")]:
        place = path.relative_to(ROOT)
        if place.parts[0] not in AT_HOME and named.search(path.read_text(encoding="utf-8")):
            found.add(place.as_posix())
    assert found == WANTED.keys()


PROBE = """
import json
from penstock.config import parse_policies
from penstock.core._register import find_strategy
from penstock.service.http._openapi import openapi
from penstock.strategies import LeakyBucket
from penstock.testkit import sample_strategies
from tools.wire.files import derive
from tools.wire.vectors import SUITES
from pathlib import Path

text = "version: 1\\nlimiters: {api: {strategy: leakyBucket, capacity: 5, leakEvery: 1s}}"
derived = derive(Path("wire"))
print(json.dumps({
    "policy": type(parse_policies(text).policies["api"].strategy) is LeakyBucket,
    "openapi": "leaky_bucket" in json.dumps(openapi()),
    "samples": any(type(sample) is LeakyBucket for sample in sample_strategies()),
    "vectors": sum(suite.kind == "leakyBucket" for suite in SUITES) > 5,
    "manifest": "leakyBucket.check" in derived["manifest.json"],
    "scripts": "scripts/leakyBucket.check.lua" in derived,
    "protocol": "`leakyBucket.check`" in derived["WIRE-PROTOCOL.md"],
}))
"""


def test_a_file_in_strategies_is_all_that_it_takes(tmp_path: Path) -> None:
    """In a copy of the package, to which nothing else is done, the new one is known everywhere."""
    package = tmp_path / "penstock"
    shutil.copytree(ROOT, package, ignore=shutil.ignore_patterns("__pycache__"))
    folder, toy = package / "strategies", REPO / "tests" / "support" / "leaky_bucket.py"
    shutil.copy(toy.with_suffix(".lua"), folder)
    source = toy.read_text().replace("@penstock.register\n", "").replace("import penstock\n", "")
    inside = {
        "from penstock import ConfigInvalidError, ": (
            "from ..core._errors import ConfigInvalidError\n"
            "from ..core._strategy import Parameter, Strategy\n"
            "from ..core._decision import "
        ),
        "Outcome, Parameter, Strategy\n": "Outcome\n",
        "from penstock.strategies import LuaSource": "from ..core._lua import LuaSource",
    }
    for there, here in inside.items():
        assert there in source
        source = source.replace(there, here)
    (folder / toy.name).write_text(source)
    listing = (folder / "__init__.py").read_text()
    assert "SlidingWindowLog):" in listing
    listing = listing.replace("SlidingWindowLog):", "SlidingWindowLog, LeakyBucket):")
    listing = listing.replace("from ._gcra", "from .leaky_bucket import LeakyBucket\nfrom ._gcra")
    (folder / "__init__.py").write_text(listing)
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {name for name, is_known in json.loads(done.stdout).items() if not is_known} == set()
