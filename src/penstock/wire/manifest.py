"""The manifest: what each script is called, takes and answers, and the hash of its text."""

from __future__ import annotations

import hashlib
from typing import Any

from ..core.strategy import LuaScript
from ..strategies.lua import NOW_ARGV, PROGRAMS, REPLY, LuaProgram

__all__ = ["CONTRACT_VERSION", "manifest", "script_file"]

CONTRACT_VERSION = "1"


def manifest() -> dict[str, Any]:
    return {
        "contractVersion": CONTRACT_VERSION,
        "frozen": False,
        "replyTuple": list(REPLY),
        "nowArgv": NOW_ARGV,
        "scripts": [entry for program in PROGRAMS for entry in _entries(program)],
    }


def script_file(script: LuaScript) -> str:
    """Where a script lies, from the folder of the manifest."""
    return f"scripts/{script.name}.lua"


def _entries(program: LuaProgram) -> list[dict[str, Any]]:
    return [
        _entry(program, "check", program.check, program.argv),
        _entry(program, "read", program.read, ()),
    ]


def _entry(
    program: LuaProgram, role: str, script: LuaScript, argv: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "name": script.name,
        "strategy": program.strategy,
        "role": role,
        "file": script_file(script),
        "keys": ["key"],
        "argv": list(argv),
        "sha256": hashlib.sha256(script.source.encode()).hexdigest(),
    }
