"""The strategies in Lua, one program per file: the single source of every script on the wire."""

from __future__ import annotations

from .fixed_window import FIXED_WINDOW, FIXED_WINDOW_FIRST
from .gcra import GCRA
from .program import (
    COUNT,
    INSTANT,
    MARGIN_MS,
    MAX_MARGIN_MS,
    NOW_ARGV,
    REPLY,
    Arguments,
    LuaProgram,
    fields_of_hash,
    hash_of,
    whole,
)
from .sliding_window import SLIDING_WINDOW
from .sliding_window_log import SLIDING_WINDOW_LOG
from .token_bucket import TOKEN_BUCKET

__all__ = [
    "COUNT",
    "FIXED_WINDOW",
    "FIXED_WINDOW_FIRST",
    "GCRA",
    "INSTANT",
    "MARGIN_MS",
    "MAX_MARGIN_MS",
    "NOW_ARGV",
    "PROGRAMS",
    "REPLY",
    "SLIDING_WINDOW",
    "SLIDING_WINDOW_LOG",
    "TOKEN_BUCKET",
    "Arguments",
    "LuaProgram",
    "fields_of_hash",
    "hash_of",
    "whole",
]

PROGRAMS: tuple[LuaProgram, ...] = (
    GCRA,
    TOKEN_BUCKET,
    FIXED_WINDOW,
    FIXED_WINDOW_FIRST,
    SLIDING_WINDOW,
    SLIDING_WINDOW_LOG,
)
