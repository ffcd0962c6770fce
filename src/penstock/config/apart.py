"""Parsing a long policy file in a process of its own.

The parser of a long file keeps the interpreter busy for a second or two. On another thread of the
same process that would still stop everything else for as long, since the compiled part of it never
lets go of the interpreter. A short file is not worth a process.

The other process finds the strategies that are registered here by their names. Where it cannot, the
file is parsed here after all.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys

from ..core.errors import PenstockError
from .loading import parse_policy_file
from .model import PolicyFile
from .registering import register_named, registered_names

__all__ = ["parse_apart"]

# The time that so many bytes take, some ten milliseconds, nobody notices.
_SHORT_BYTES = 1 << 13
_PARSE_S = 120.0


def parse_apart(raw: bytes, source: str) -> PolicyFile:
    """As `parse_policy_file`. Waits for it, so a thread of its own should."""
    names = registered_names()
    if len(raw) <= _SHORT_BYTES or not sys.executable or names is None:
        return parse_policy_file(raw, source)
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, source, json.dumps(names)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # What is sent to the whole process group, such as Ctrl-C, is not meant for it.
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
    """The other process: bytes in, a PolicyFile or what is wrong with it out, pickled; None if it
    does not find the strategies."""
    # It makes a million objects and ends; looking for garbage among them would take half the time.
    gc.disable()
    raw = sys.stdin.buffer.read()
    with os.fdopen(os.dup(1), "wb") as out:
        # What a user's module prints is not part of the answer.
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
