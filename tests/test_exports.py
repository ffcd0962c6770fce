"""The public server: what it lists is what is there, and it needs nothing but Python."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock.core.errors import PenstockError

SRC = Path(penstock.__file__).parents[1]

ROOMS = [
    "penstock",
    "penstock.core.clock",
    "penstock.core.decision",
    "penstock.core.durations",
    "penstock.core.errors",
    "penstock.core.keys",
    "penstock.core.limiter",
    "penstock.core.native",
    "penstock.core.store",
    "penstock.core.strategy",
    "penstock.core.validation",
    "penstock.core.waiting",
    "penstock.front",
    "penstock.stores.memory",
    "penstock.stores.memory.table",
    "penstock.stores.memory.wheel",
    "penstock.strategies",
    "penstock.testkit",
]


FIRST_CHECK = "from penstock import rate_limit; rate_limit('10/second').check('k')"


def run_python(code: str, **env: str) -> Any:
    """What a fresh interpreter prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC), **env},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_is_sorted() -> None:
    """So that a reader finds a name, and a merge finds its place."""
    assert penstock.__all__ == sorted(penstock.__all__)


def test_all_is_what_is_there() -> None:
    """Every public name of the package is listed, and every listed name exists."""
    there = {
        name
        for name, value in vars(penstock).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert there == set(penstock.__all__)


@pytest.mark.parametrize("room", ROOMS)
def test_every_listed_name_exists(room: str) -> None:
    """Also further inside; none twice."""
    module = importlib.import_module(room)
    assert len(module.__all__) == len(set(module.__all__))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_every_public_thing_is_explained() -> None:
    """Classes and functions behind the server have a docstring."""
    bare = [
        name
        for name in penstock.__all__
        if callable(getattr(penstock, name)) and not getattr(penstock, name).__doc__
    ]
    assert bare == []


def test_importing_needs_only_the_standard_library() -> None:
    """In a fresh interpreter, nothing is loaded that does not come with Python."""
    foreign = run_python(
        "import sys; before = set(sys.modules); import penstock, json;"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "names = {n for n in names if not n.startswith(('_cython', 'cython_runtime'))};"
        "print(json.dumps(sorted(names - sys.stdlib_module_names - {'penstock'})))"
    )
    assert foreign == []


def test_importing_leaves_the_optional_rooms_closed() -> None:
    """Backends, servers and the kit are loaded by those who use them."""
    loaded = run_python(
        "import sys, json, penstock;"
        "inside = [name for name in sys.modules if name.startswith('penstock.')];"
        "print(json.dumps(sorted({name.split('.')[1] for name in inside})))"
    )
    assert set(loaded) <= {"_queueing", "accel", "core", "front", "stores", "strategies"}


# What a program that checks limits in its own process can do without: asyncio and ssl were half of
# the time that the import took, the others a quarter.
HEAVY = ["asyncio", "dataclasses", "hashlib", "inspect", "logging", "socket", "ssl", "urllib.parse"]


@pytest.mark.parametrize("pure", ["0", "1"])
@pytest.mark.parametrize("code", ["import penstock", FIRST_CHECK])
def test_importing_and_a_first_check_load_nothing_heavy(code: str, pure: str) -> None:
    """Whoever only checks does not pay for waiting in tasks, for TLS or for a server."""
    loaded = run_python(
        f"import sys; {code}; heavy = sys.modules.keys() & set({HEAVY!r});"
        "import json; print(json.dumps(sorted(heavy)))",
        PENSTOCK_PURE=pure,
    )
    assert loaded == []


def test_importing_starts_no_thread_and_prints_nothing() -> None:
    """A library is quiet until it is called."""
    assert (
        run_python("import json, threading, penstock; print(json.dumps(threading.active_count()))")
        == 1
    )


def test_the_pure_path_can_be_forced() -> None:
    """PENSTOCK_PURE=1 turns the native path off; 0 and nothing leave it to what was built."""
    code = "import json, penstock; print(json.dumps(penstock.accelerated))"
    assert run_python(code, PENSTOCK_PURE="1") is False
    assert run_python(code, PENSTOCK_PURE="0") == run_python(code, PENSTOCK_PURE="")


def test_both_paths_offer_the_same_names() -> None:
    """A Decision looks alike whichever class it is."""
    code = (
        "import json, pickle, penstock as p;"
        "d = p.Decision(True, 5, 4, 3, 0); public = [n for n in dir(d) if n[0] != '_'];"
        "same = d == p.Decision(True, 5, 4, 3, 0);"
        "print(json.dumps([p.__all__, public, repr(d), hash(d), same]))"
    )
    assert run_python(code, PENSTOCK_PURE="1") == run_python(code, PENSTOCK_PURE="0")


def test_a_decision_pickled_on_one_path_is_read_on_the_other() -> None:
    """Processes of a fleet need not all be built alike."""
    dump = (
        "import json, pickle, penstock as p;"
        "print(json.dumps(pickle.dumps(p.Decision(False, 5, 0, 9, 4)).hex()))"
    )
    for here, there in (("0", "1"), ("1", "0")):
        data = run_python(dump, PENSTOCK_PURE=here)
        load = (
            "import json, pickle, penstock as p;"
            f"d = pickle.loads(bytes.fromhex({data!r}));"
            "same = d == p.Decision(False, 5, 0, 9, 4);"
            "print(json.dumps([repr(d), type(d) is p.Decision, same]))"
        )
        shown, same_type, equal = run_python(load, PENSTOCK_PURE=there)
        assert shown.startswith("Decision(allowed=False, limit=5")
        assert same_type
        assert equal


def test_error_codes_are_the_promised_ones() -> None:
    """Programs branch on these; they are never renamed."""
    codes = {error.__name__: error.code for error in PenstockError.__subclasses__()}
    promised = {
        "ConfigInvalidError": "config_invalid",
        "QueueFullError": "queue_full",
        "RateLimitExceededError": "rate_limit_exceeded",
        "StoreUnavailableError": "store_unavailable",
        "UnsupportedError": "not_implemented",
    }
    assert promised.items() <= codes.items()
    assert set(codes.values()) == set(promised.values())


def test_the_package_is_typed() -> None:
    """The marker that tells type checkers to look inside."""
    assert (SRC / "penstock" / "py.typed").exists()
