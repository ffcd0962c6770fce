"""The fixed window in Lua: a hash of two fields, `s` the window's start and `c` its count.

Both anchors keep the same state and differ in one line, the window that `now` falls into. They
are two scripts, because a client that knows only the epoch's has no argument for the other.

Every admission sets the expiry, not only the one that opens a window: the next caller may have been
given a longer window, or a clock that is behind.

Whole numbers up to 2**53 divide and multiply exactly here: floor(now / windowMs) is never rounded
up to the next window, and a sum too large to be exact is above every limit anyway.
"""

from __future__ import annotations

from typing import Any

from .program import COUNT, INSTANT, LuaProgram, fields_of_hash, hash_of, whole

__all__ = ["FIXED_WINDOW", "FIXED_WINDOW_FIRST"]

_ARGV = ("now", "limit", "windowMs", "cost")

_LOAD = hash_of("s", "c")

_PARSE = f"""
local storedStart, storedCount
if isStored then
  storedStart = number(stored[1], {INSTANT})
  storedCount = number(stored[2], {COUNT})
end
"""

_EPOCH = """
local start, count = math.floor(now / windowMs) * windowMs, 0
"""

_FIRST = """
local start, count = now, 0
if storedStart and now - storedStart < windowMs then start = storedStart end
"""

_DECIDE = """
if storedStart and storedStart >= start then start, count = storedStart, storedCount end
local resetAt = start + windowMs

if count + cost > limit then
  return {0, limit, math.max(0, limit - count), resetAt, resetAt - now}
end

count = count + cost
redis.call('HSET', KEYS[1], 's', string.format('%.0f', start), 'c', string.format('%.0f', count))
redis.call('PEXPIRE', KEYS[1], keepMs(resetAt - now))
return {1, limit, limit - count, resetAt, 0}
"""


def _decode(raw: Any) -> tuple[int, int] | None:
    fields = fields_of_hash(raw)
    return None if fields is None else (whole(fields[0]), whole(fields[1]))


def _anchored(name: str, window: str) -> LuaProgram:
    return LuaProgram(
        name,
        strategy="fixedWindow",
        argv=_ARGV,
        state="hash: s start of the window, c count in it, each %.0f",
        check=_LOAD + "".join(part.lstrip("\n") for part in (_PARSE, window, _DECIDE)),
        read=f"{_LOAD}return stored\n",
        raw="s and c, or nil twice",
        decode=_decode,
    )


FIXED_WINDOW = _anchored("fixedWindow", _EPOCH)
FIXED_WINDOW_FIRST = _anchored("fixedWindowFirst", _FIRST)
