"""The sliding window in Lua: a hash used as a ring.

Tick t lives in field t % (buckets + 1) as "<t>:<count>". The window spans buckets + 1 ticks, so
the field of the current tick is either its own or holds one that has left the window, and is
simply overwritten. What is stale elsewhere in the ring is told by its tick and skipped.

The ring is read whole. It has at most buckets + 1 fields and often far fewer, and naming them all
in one command would overflow Lua's stack for rings of some thousands.
"""

from __future__ import annotations

from typing import Any

from ...core.validation import MAX_INSTANT_MS, MAX_SAFE
from .program import LuaProgram, whole

__all__ = ["SLIDING_WINDOW"]

_LOAD = f"""
local w = windowMs / buckets

local ticks, counts = {{}}, {{}}
local tick, last = math.floor(now / w), math.floor({MAX_INSTANT_MS} / w)
local ring = redis.call('HGETALL', KEYS[1])
for i = 2, #ring, 2 do
  local t, count = string.match(ring[i], '^(%d+):(%d+)$')
  if not (t and string.find(ring[i - 1], '^%d+$')) then foreign() end
  t, count = tonumber(t), tonumber(count)
  if t > last or count > {MAX_SAFE} then foreign() end
  ticks[#ticks + 1], counts[#counts + 1] = t, count
  if t > tick then tick = t end
end
"""

_DECIDE = """
local edge = tick - buckets
local full, oldest, current = 0, 0, 0
for i = 1, #ticks do
  if ticks[i] == edge then
    oldest = counts[i]
  elseif ticks[i] > edge then
    full = full + counts[i]
    if ticks[i] == tick then current = counts[i] end
  end
end

local elapsed = math.max(0, now - tick * w)
local weight = math.min(1, math.max(0, (w - elapsed) / w))
local estimate = full + oldest * weight
local projected = estimate + cost
local resetAt = math.ceil((tick + 1) * w + windowMs)

if projected > limit then
  local excess = projected - limit
  local retry
  if oldest > 0 and excess <= oldest * weight then
    retry = math.ceil(excess * w / oldest)
  else
    retry = math.ceil((tick + 1) * w - now)
  end
  return {0, limit, math.max(0, math.floor(limit - estimate)), resetAt, math.max(1, retry)}
end

local field = string.format('%.0f', tick % (buckets + 1))
redis.call('HSET', KEYS[1], field, string.format('%.0f:%.0f', tick, current + cost))
redis.call('PEXPIRE', KEYS[1], keepMs(math.max(1, resetAt - now)))
return {1, limit, math.max(0, math.floor(limit - projected)), resetAt, 0}
"""

_READ = """
return redis.call('HGETALL', KEYS[1])
"""

State = tuple[tuple[int, int], ...]


def _decode(raw: Any) -> State | None:
    for field in raw[::2]:
        whole(field)
    return tuple(sorted(_pair(value) for value in raw[1::2])) or None


def _pair(value: Any) -> tuple[int, int]:
    tick, count = value.split(b":" if isinstance(value, bytes) else ":")
    return whole(tick), whole(count)


SLIDING_WINDOW = LuaProgram(
    "slidingWindow",
    strategy="slidingWindow",
    argv=("now", "windowMs", "limit", "cost", "buckets"),
    state='hash: field tick % (buckets + 1), value "<tick>:<count>", each %.0f',
    check=_LOAD + _DECIDE,
    read=_READ,
    raw='field, "<tick>:<count>", field, "<tick>:<count>", ...',
    decode=_decode,
)
