"""Loading policy files: `load_policy_file`, parsing in another process, and users' strategies.

Parsing a long file takes a second or two. On a thread of a serving process that would stop all
requests, because the compiled YAML parser holds the interpreter lock. So `parse_apart` parses long
files in another process.

The other process imports the strategies that are registered in this one by the names of their
classes. If it cannot find them, the file is parsed in this process.

`import_modules` imports the modules of `--import`, which call `penstock.register`; each worker does
so too. A process that only parses gets the names of the classes instead, because a program may also
have registered them in some other way.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from ..core._errors import PenstockError
from ..core._files import read_regular
from ..core._register import register, registered
from ..core._validation import reject
from ._model import PolicyFile
from ._policies import policies_of
from ._tree import PolicyFileError, read_json, read_yaml

__all__ = [
    "MAX_BYTES",
    "ClassName",
    "import_modules",
    "load_policy_file",
    "parse_apart",
    "parse_policies",
    "parse_policy_file",
    "read_policy_file",
    "register_named",
    "registered_names",
]


ClassName = tuple[str, str]
"""The module and the qualified name of a class."""


def import_modules(names: Iterable[str]) -> None:
    """Import modules, also from the working directory. Raises `config_invalid` if one cannot be
    imported."""
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            reject(f"--import {name!r} is not the name of a module, such as shop.limits")
        # `python -m` has the working directory on its path; an installed command does not.
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        try:
            import_module(name)
        except PenstockError as error:
            reject(f"--import {name}: {error}")
        except (Exception, SystemExit) as error:
            if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                reject(
                    f"--import {name}: there is no module {error.name}, neither in {here} nor "
                    "where Python looks for modules; see PYTHONPATH"
                )
            told = f"{type(error).__name__}: {error}{_place(error.__traceback__)}"
            reject(f"--import {name} cannot be imported: {told}")


def _place(trace: TracebackType | None) -> str:
    """Where in the user's code an error was raised, if it was."""
    frames = [
        frame
        for frame in traceback.extract_tb(trace)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def registered_names() -> list[ClassName] | None:
    """The names by which another process can import the registered classes; None if it cannot
    import all of them."""
    names = [(cls.__module__, cls.__qualname__) for cls in registered()]
    for cls, (module, qualname) in zip(registered(), names, strict=True):
        loaded = None if module == "__main__" else sys.modules.get(module)
        if _member(loaded, qualname) is not cls:
            return None
    return names


def register_named(names: Iterable[ClassName]) -> None:
    """Register the classes that another process has registered. Raises if one cannot be
    imported."""
    for module, qualname in names:
        register(_member(import_module(module), qualname))


def _member(module: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        module = getattr(module, part, None)
    return module


MAX_BYTES = 16 << 20
"""The largest policy file: twice as large as 20,000 policies with several limits and plans."""


def load_policy_file(path: str | Path) -> PolicyFile:
    """The policies of a YAML file, or of a JSON file if its name ends in .json.

    Raises `config_invalid` with the file, the path inside it and what would be right.
    """
    return parse_policy_file(read_policy_file(path), str(path))


def read_policy_file(path: str | Path) -> bytes:
    """The bytes of a policy file. Raises `config_invalid` if it cannot be read."""
    try:
        return read_regular(path, MAX_BYTES)
    except OSError as error:
        raise PolicyFileError(f"{path}: cannot be read: {error.strerror or error}") from None


def parse_policy_file(raw: bytes, source: str) -> PolicyFile:
    """The policies in the bytes of a file."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PolicyFileError(
            f"{source}: is not UTF-8, at byte {error.start}; save it as UTF-8"
        ) from None
    return parse_policies(text, source, hashlib.sha256(raw).hexdigest())


def parse_policies(text: str, source: str = "penstock.yaml", digest: str = "") -> PolicyFile:
    """The policies of a text. `source` is its name in messages; a name that ends in .json means
    that it is JSON, any other that it is YAML."""
    read = read_json if source.lower().endswith(".json") else read_yaml
    with _uncollected() if len(text) > _LONG else nullcontext():
        return policies_of(read(text, source), digest)


_LONG = 1 << 18


@contextmanager
def _uncollected() -> Iterator[None]:
    """Turn the garbage collector off: none of a million new objects is garbage, and looking at them
    again and again takes a sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# Parsing this much takes some ten milliseconds, which is not worth a process.
_SHORT_BYTES = 1 << 13
_PARSE_S = 120.0


def parse_apart(raw: bytes, source: str) -> PolicyFile:
    """As `parse_policy_file`, in another process if the file is long. Blocks: call it on a
    thread."""
    names = registered_names()
    if len(raw) <= _SHORT_BYTES or not sys.executable or names is None:
        return parse_policy_file(raw, source)
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, source, json.dumps(names)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Signals to the process group, such as Ctrl-C, must not reach it.
        start_new_session=True,
    ) as process:
        try:
            told, _ = process.communicate(raw, _PARSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise TimeoutError(f"it was not parsed within {_PARSE_S:g} s") from None
    if process.returncode != 0:
        raise ChildProcessError(f"the process that parsed it ended with {process.returncode}")
    answer = pickle.loads(told)
    if answer is None:
        return parse_policy_file(raw, source)
    if isinstance(answer, PenstockError):
        raise answer
    file: PolicyFile = answer
    return file


def main() -> None:
    """The main function of the other process: reads the bytes of a file, and writes a pickled
    PolicyFile, an error, or None if it cannot import the strategies."""
    # The process ends soon, and garbage collection would take half of its time.
    gc.disable()
    raw = sys.stdin.buffer.read()
    with os.fdopen(os.dup(1), "wb") as out:
        # What a user's module prints must not become part of the answer.
        os.dup2(2, 1)
        pickle.dump(_answer(raw, *sys.argv[1:]), out, pickle.HIGHEST_PROTOCOL)


def _answer(raw: bytes, source: str, names: str) -> PolicyFile | PenstockError | None:
    try:
        register_named(json.loads(names))
    except Exception:
        return None
    try:
        return parse_policy_file(raw, source)
    except PenstockError as error:
        return error
