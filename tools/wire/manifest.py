"""The manifest: what each script is called, takes and answers, and the hash of its text."""

from __future__ import annotations

import hashlib
from typing import Any

from penstock import strategies
from penstock.core._lua import NOW_ARGV, REPLY, LuaScript, LuaSource
from penstock.core._register import registered

__all__ = ["CONTRACT_VERSION", "manifest", "published", "script_file"]

CONTRACT_VERSION = "1"


def manifest() -> dict[str, Any]:
    return {
        "contractVersion": CONTRACT_VERSION,
        "frozen": False,
        "replyTuple": list(REPLY),
        "nowArgv": NOW_ARGV,
        "scripts": [entry for source in published() for entry in _entries(source)],
    }


def published() -> list[LuaSource]:
    """The Lua of the strategies of this package. What a user registers is the user's to publish."""
    built_in = (cls for cls in registered() if cls.__module__.startswith(strategies.__name__))
    return [source for cls in built_in for source in cls.lua_sources]


def script_file(script: LuaScript) -> str:
    """Where a script lies, from the folder of the manifest."""
    return f"scripts/{script.name}.lua"


def _entries(source: LuaSource) -> list[dict[str, Any]]:
    return [
        _entry(source, "check", source.check, source.argv),
        _entry(source, "read", source.read, ()),
    ]


def _entry(
    source: LuaSource, role: str, script: LuaScript, argv: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "name": script.name,
        "strategy": source.strategy,
        "role": role,
        "file": script_file(script),
        "keys": ["key"],
        "argv": list(argv),
        "sha256": hashlib.sha256(script.source.encode()).hexdigest(),
    }
