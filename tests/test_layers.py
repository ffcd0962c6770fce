"""Imports point one way, and a package that nobody has placed yet is not let in by accident."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import penstock

ROOT = Path(penstock.__file__).parent

# From the ground up. A package may use those on lower layers, and itself.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"_queueing"}),
    frozenset({"core"}),
    frozenset({"strategies"}),
    frozenset({"accel", "stores"}),
    frozenset({"_declared"}),
    frozenset({"_limits", "_rate_limit", "budget", "concurrency"}),
    frozenset({"_arguments"}),
    frozenset({"_limited", "admission", "testkit"}),
    frozenset({"config", "wire"}),
    frozenset({"adapters", "leasing"}),
    frozenset({"client"}),
    frozenset({"integrations"}),
    frozenset({"service"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}

# The compiled modules, and the choice of them, import nothing else of the package, so anybody may
# use them.
LEAVES = frozenset({"accel._native", "accel._http2", "accel._grpc", "accel._choice"})
_SOURCES = (".pyx", ".pxi", ".pxd")


def module_of(path: Path) -> str:
    """`core._clock` for core/_clock.py; `core` for core/__init__.py; "" for the root."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in ROOT.rglob("*.py")}


@cache
def syntax_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(module: str, path: Path, *, eager: bool = False) -> Iterator[str]:
    """The modules of this package that a file imports; `eager`: only those loaded with it."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _loaded_with(syntax_of(path)[0]) if eager else syntax_of(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "penstock":
                    yield alias.name.partition(".")[2]
        elif isinstance(node, ast.ImportFrom):
            yield from _from(node, package)


def _from(node: ast.ImportFrom, package: str) -> Iterator[str]:
    if node.level == 0:
        head, _, target = (node.module or "").partition(".")
        if head != "penstock":
            return
    else:
        parts = package.split(".") if package else []
        base = parts[: len(parts) - (node.level - 1)]
        target = ".".join([*base, *(node.module.split(".") if node.module else [])])
    for alias in node.names:
        inner = f"{target}.{alias.name}" if target else alias.name
        yield inner if inner in MODULES or inner in LEAVES else target


def _loaded_with(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _loaded_with(node)


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_every_package_has_its_layer() -> None:
    """A new package says where it stands, in LAYERS above."""
    packages = {package_of(module) for module in MODULES} - {""}
    assert packages <= LAYER_OF.keys(), f"place {sorted(packages - LAYER_OF.keys())} in LAYERS"


def test_imports_point_downwards() -> None:
    """core <- strategies <- accel, stores <- wire, config <- service, adapters <- cli."""
    upward = [
        f"{module} imports {target}"
        for module, path in MODULES.items()
        if module
        for target in imports(module, path)
        if target not in LEAVES
        and package_of(target) != package_of(module)
        and LAYER_OF.get(package_of(target), 99) >= LAYER_OF[package_of(module)]
    ]
    assert upward == []


def test_nothing_inside_imports_the_root() -> None:
    """It is for those outside."""
    assert [
        module for module, path in MODULES.items() if module and "" in imports(module, path)
    ] == []


def test_nothing_but_the_tests_uses_the_testkit() -> None:
    """It is for those who build on the package, not for the package."""
    users = [
        module
        for module, path in MODULES.items()
        if package_of(module) not in ("testkit", "cli")
        and any(package_of(target) == "testkit" for target in imports(module, path))
    ]
    assert users == []


def test_the_core_and_its_queues_use_the_standard_library_and_the_leaves() -> None:
    """Whatever else they import would be needed by everybody."""
    import sys

    ground = ("_queueing", "core")
    for module, path in MODULES.items():
        if package_of(module) not in ground:
            continue
        for target in imports(module, path):
            assert package_of(target) in ground or target in LEAVES, (module, target)
        for node in syntax_of(path):
            if isinstance(node, ast.Import):
                heads = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                heads = {(node.module or "").partition(".")[0]}
            else:
                continue
            assert heads <= sys.stdlib_module_names, (module, heads)


def test_no_module_imports_itself_in_a_circle() -> None:
    """What is loaded with a module never leads back to it."""
    edges = {
        module: {target for target in imports(module, path, eager=True) if target in MODULES}
        for module, path in MODULES.items()
    }
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for target in sorted(edges[module]):
                walk(target, (*trail, module))
            done.add(module)

    for module in sorted(edges):
        walk(module, ())


def test_the_leaves_really_are_some() -> None:
    """Their sources include and import nothing of the package besides each other."""
    assert not list(imports("accel._choice", MODULES["accel._choice"]))
    sources = [path for path in (ROOT / "accel").iterdir() if path.suffix in _SOURCES]
    assert sources
    for source in sources:
        for line in source.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"], ["cimport"]):
                assert words[1].removeprefix("penstock.") in LEAVES or not words[1].startswith(
                    (".", "penstock")
                ), line


def test_http2_uses_the_standard_library_and_its_twin() -> None:
    """It knows bytes, and nothing of limits, policies or the service around it."""
    for module, path in MODULES.items():
        if module.startswith("service.http2"):
            for target in imports(module, path):
                assert target.startswith("service.http2") or target in LEAVES, (module, target)


WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}


def wall_clock_readings(path: Path) -> set[str]:
    """Where a file names a function that tells the time of day. Monotonic ones may time a wait."""
    named = set()
    for node in syntax_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            named.add(f"{owner}.{node.attr}")
        elif isinstance(node, ast.ImportFrom):
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
    return named & WALL_CLOCK


def test_one_place_reads_the_system_clock() -> None:
    """Everybody else is given the time, and so can be tested without waiting."""
    readers = [module for module, path in MODULES.items() if wall_clock_readings(path)]
    assert readers == ["core._clock"]


def test_nobody_outside_the_stores_asks_of_what_type_a_store_is() -> None:
    """What a store can do it says itself, as an attribute or a method of `Store`."""
    asked = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        if package_of(module) != "stores"
        for node in syntax_of(path)
        if _asks_for_a_store_type(node)
    ]
    assert asked == []


def _asks_for_a_store_type(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return any(_is_type_call(side) for side in (node.left, *node.comparators)) and any(
            _names_a_store(side) for side in (node.left, *node.comparators)
        )
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    if node.func.id in ("getattr", "hasattr"):
        by_name = isinstance(node.args[1], ast.Constant)
        return by_name and ast.unparse(node.args[0]).endswith("store")
    return node.func.id in ("isinstance", "issubclass") and _names_a_store(node.args[1])


def _is_type_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "type"


def _names_a_store(node: ast.AST) -> bool:
    """A class of a store; `Store` itself may be required of an argument."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return any(name.endswith("Store") and name != "Store" for name in names)
