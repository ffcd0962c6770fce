"""GCRA in Lua: one string, the TAT, written with all 17 digits.

A denial reads and answers; an admission is one SET that carries its expiry. A stored TAT before
`now` counts as `now`, so a key that outlives its ttl decides like one that is gone.
"""

from __future__ import annotations

from typing import Any

from .program import LuaProgram

__all__ = ["GCRA"]

_CHECK = """
local interval = periodMs / limit
local tau = interval * burst

local tat = now
local stored = redis.call('GET', KEYS[1])
if stored then tat = math.max(tonumber(stored), now) end

local new = tat + interval * cost
local allowAt = new - tau
if now < allowAt then
  local remaining = math.max(0, math.floor((tau - (tat - now)) / interval))
  local retry = math.min(math.ceil(allowAt - now), 9007199254740991)
  return {0, burst, remaining, math.ceil(tat), retry}
end

local remaining = math.max(0, math.floor((tau - (new - now)) / interval))
local ttl = math.max(1, math.ceil(new - now))
redis.call('SET', KEYS[1], string.format('%.17g', new), 'PX', keepMs(ttl))
return {1, burst, remaining, math.ceil(new), 0}
"""

_READ = """
return redis.call('GET', KEYS[1])
"""


def _decode(raw: Any) -> float | None:
    return None if raw is None else float(raw)


GCRA = LuaProgram(
    "gcra",
    strategy="gcra",
    argv=("now", "periodMs", "limit", "burst", "cost"),
    state="string: the TAT, %.17g",
    check=_CHECK,
    read=_READ,
    raw="the TAT, or nil",
    decode=_decode,
)
