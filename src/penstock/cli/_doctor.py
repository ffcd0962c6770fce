"""`penstock doctor`: reports what is installed, and checks the store and the policy file."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from importlib import metadata

from ..accel._choice import interpreted_because
from ..config import load_policy_file
from ..config._loading import import_modules
from ..core import native
from ..core._clock import SystemClock
from ..core._errors import (
    EXTRAS,
    ConfigInvalidError,
    PenstockError,
    UnsupportedError,
    distribution_of,
    install_line,
)
from ..core._lua import MARGIN_MS
from ..core._register import registered
from ..core._store import Store
from ..core._validation import reject
from ..service._fail_modes import PING, PING_KEY, ask_store
from ..service._logs import shown_store
from ..stores._opening import open_store
from ._settings import Settings, add_import, imports_of
from ._store import add_store, call_and_close, store_url
from ._version import describe

__all__ = ["SUMMARY", "configure", "run"]


SUMMARY = "report what is installed, and check the store and the policy file"

_EPILOG = """\
examples:
  penstock doctor
  penstock doctor --store redis://localhost:6379 --config penstock.yaml

The variables of a service, such as PENSTOCK_STORE, are used too. Nothing is written to the store.

Exit codes: 0 all is well, 1 the store does not answer, 2 the store's URL, the policy file or an
imported module is invalid.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    settings = Settings(parser)
    add_store(settings, help="the store to check")
    settings.add("--config", metavar="FILE", help="the policy file to check")
    add_import(settings)


def run(args: argparse.Namespace) -> int:
    """Check everything, also after a failure. The exit code is that of the worst one."""
    print(f"{describe()} on {platform.system()} {platform.machine()}")
    print(f"  {_path()}")
    for line in _extras():
        print(f"  {line}")
    args.settings.resolve(args)
    codes, url = [0], store_url(args)
    if url is not None:
        codes.append(_report("store", lambda: _reach(url)))
    if imports := imports_of(args):
        codes.append(_report("strategies", lambda: _known(imports)))
    if args.config is not None:
        codes.append(_report("policies", lambda: _read(args.config)))
    return max(codes)


def _path() -> str:
    if native is not None:
        return "accelerated: checks in memory take the native path"
    reason = interpreted_because or (
        "the extension was not built; install again with a C compiler at hand"
    )
    return f"not accelerated: {reason}"


def _extras() -> Iterator[str]:
    for extra, requirements in EXTRAS.items():
        found = {name: _version(name) for name in map(distribution_of, requirements)}
        listed = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
        fix = "" if all(found.values()) else f" ({install_line(extra)})"
        yield f"{extra}: {listed}{fix}"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _report(what: str, look: Callable[[], str]) -> int:
    try:
        print(f"  {what}: {look()}")
    except (ConfigInvalidError, UnsupportedError) as error:
        print(f"  {what}: WRONG: {error}")
        return 2
    except (PenstockError, OSError) as error:
        print(f"  {what}: AWAY: {error}")
        return 1
    return 0


def _reach(url: str) -> str:
    """Ask twice: the first answer includes connecting, the second is one round trip."""
    store, clock = open_store(url), SystemClock()

    def ask() -> list[float]:
        _require_server_clock(store, clock.now)
        return [_timed(lambda: store.apply(PING_KEY, PING, clock.now(), 1)) for _ in range(2)]

    async def aask() -> list[float]:
        took = []
        for _ in range(2):
            start = time.perf_counter()
            await ask_store(store, clock.now())
            took.append((time.perf_counter() - start) * 1000)
        return took

    first, again = call_and_close(store, ask, aask)
    return f"{shown_store(url)} answers, in {first:.1f} ms at first and in {again:.1f} ms then"


def _require_server_clock(store: Store, now: Callable[[], int]) -> None:
    """Reject a Redis whose clock is so far ahead of ours that it removes keys too early for callers
    that decide by their own clock. `MARGIN_MS` is how much longer every key is kept."""
    if store.reads_own_clock or (shown := store.server_now(PING_KEY)) is None:
        return
    ahead_ms = shown - now()
    if ahead_ms > MARGIN_MS:
        reject(
            f"the clock of the server is {ahead_ms // 1000} s ahead of this machine's, which "
            "decides because of use_server_time=false: states of callers with the later clock "
            "expire too early for this one; set the clocks right, or leave use_server_time out"
        )


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def _known(imports: tuple[str, ...]) -> str:
    import_modules(imports)
    return ", ".join(cls.name for cls in registered())


def _read(path: str) -> str:
    count = len(load_policy_file(path).policies)
    return f"{path} is good, {count} {'policy' if count == 1 else 'policies'}"
