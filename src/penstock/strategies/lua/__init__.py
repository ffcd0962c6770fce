"""The strategies in Lua, one program per file: the single source of every script on the wire."""

from __future__ import annotations

from .gcra import GCRA
from .program import MARGIN_MS, NOW_ARGV, REPLY, LuaProgram

__all__ = ["GCRA", "MARGIN_MS", "NOW_ARGV", "PROGRAMS", "REPLY", "LuaProgram"]

PROGRAMS: tuple[LuaProgram, ...] = (GCRA,)
