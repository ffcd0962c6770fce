"""The public API: what it lists is what is there, and it needs nothing but Python."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock.core._errors import PenstockError
from tools.docs.api import INTERNAL, Reference

SRC = Path(penstock.__file__).parents[1]

INSIDE = [info.name for info in pkgutil.walk_packages(penstock.__path__, "penstock.")]
MODULES = ["penstock", *(name for name in INSIDE if ".proto" not in name and "_native" not in name)]
"""All that have an `__all__` of their own making."""

PUBLIC = [name for name in MODULES if "._" not in name]


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


@pytest.mark.parametrize("name", MODULES)
def test_every_listed_name_exists(name: str) -> None:
    """Also further inside; none twice."""
    if name.endswith("__main__"):
        return
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])
    assert len(listed) == len(set(listed))
    assert [each for each in listed if not hasattr(module, each)] == []


def test_what_the_docs_list_is_what_can_be_imported() -> None:
    """A module without an underscore is on a page, with all that its `__all__` lists, or it is a
    package that the pages leave out for a reason. So is a name: what is not listed is private. A
    module answers for what it defines, a package also for what its modules do; what else they
    import is their own business."""
    reference = Reference("penstock")
    left_out = tuple(f"penstock.{name}" for name in INTERNAL)
    for name in PUBLIC:
        if name in left_out or name.startswith(tuple(f"{each}." for each in left_out)):
            continue
        assert name in reference.modules, f"{name} is on no page"
        module = reference.modules[name]
        there = {
            each
            for each, value in vars(module).items()
            if not each.startswith("_")
            and not isinstance(value, ModuleType)
            and _is_of(module, getattr(value, "__module__", None))
        }
        assert there - {"annotations", "TYPE_CHECKING"} <= set(module.__all__), name
        assert set(module.__all__) == {
            full.rpartition(".")[2] for full in reference.places if full.rpartition(".")[0] == name
        }
    assert [name for name in reference.modules if name not in PUBLIC] == []


def _is_of(module: ModuleType, home: str | None) -> bool:
    has_modules = any(name.startswith(f"{module.__name__}.") for name in INSIDE)
    if has_modules:
        return home is None or home.startswith("penstock")
    return home == module.__name__


# Classes that are written twice, interpreted and compiled, and do the same.
_TWINS = {
    "Decision",
    "DecisionReplies",
    "Allowance",
    "Decoder",
    "Durations",
    "Encoder",
    "HeaderBlock",
    "HpackError",
    "Http2Connection",
    "Http2Options",
    "Order",
    "Record",
    "Room",
    "Stream",
    "Table",
}

# A .pxd declares once more the classes of its .pyx, and it alone some structs.
_COMPILED = {
    ".pyx": re.compile(r"^ *(?:class|cdef class|cdef struct|ctypedef struct) (\w+)", re.MULTILINE),
    ".pxd": re.compile(r"^ *(?:cdef struct|ctypedef struct) (\w+)", re.MULTILINE),
}
_COMPILED[".pxi"] = _COMPILED[".pyx"]


def test_no_class_name_stands_for_two_things() -> None:
    """Not in the compiled sources either, twins aside; generated messages mirror others."""
    names = Counter(
        node.name
        for path in (SRC / "penstock").rglob("*.py")
        if "proto" not in path.parts
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    for path in (SRC / "penstock" / "accel").iterdir():
        if path.suffix in _COMPILED:
            names.update(_COMPILED[path.suffix].findall(path.read_text(encoding="utf-8")))
    assert {name for name, count in names.items() if count > 1} == _TWINS
    assert all(names[name] == 2 for name in _TWINS)


def test_every_public_thing_is_explained() -> None:
    """Classes and functions of the package have a docstring."""
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


def test_importing_leaves_the_optional_packages_unloaded() -> None:
    """Backends, servers and the kit are loaded by those who use them."""
    loaded = run_python(
        "import sys, json, penstock;"
        "inside = [name for name in sys.modules if name.startswith('penstock.')];"
        "print(json.dumps(sorted({name.split('.')[1] for name in inside})))"
    )
    assert set(loaded) <= {
        "_arguments",
        "_declared",
        "_limited",
        "_limits",
        "_queueing",
        "accel",
        "core",
        "_rate_limit",
        "stores",
        "strategies",
    }


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


def test_without_the_interpreter_lock_the_compiled_path_is_off_and_doctor_says_why() -> None:
    """As on a free-threaded build with the lock off, which is simulated. No compiled module of the
    package is imported: the import alone would switch the lock on."""
    lockless = "import sys; sys._is_gil_enabled = lambda: False;"
    ask = (
        "import json, penstock, penstock.service.http2 as http2;"
        "loaded = [n for n, m in sys.modules.items() if n.startswith('penstock.accel._') and "
        "not m.__file__.endswith('.py')];"
        "print(json.dumps([penstock.accelerated, http2.compiled is None, loaded]))"
    )
    assert run_python(lockless + ask) == [False, True, []]
    doctor = (
        "import contextlib, io, json; from penstock.cli import main; told = io.StringIO();"
        "exec('with contextlib.redirect_stdout(told): main([\\'doctor\\'])');"
        "print(json.dumps(told.getvalue()))"
    )
    assert "not accelerated: this free-threaded Python runs without" in run_python(
        lockless + doctor
    )


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
