"""The sliding window log in Lua: a sorted set with one member per admitted unit, scored in ms.

What counts and where the k-th unit stands is asked by score and by rank, in logarithmic time; the
set is never read whole to decide, and what the oldest and the newest unit tell is not asked for
again: each command called from Lua costs more than the work it does. Units that have left the
window are removed by the next admission, not by a denial, which writes nothing.

A member must be new to the set, or adding it would admit a unit without counting it. Ours are
"u<stamp>.<n>", n counting on from the units that already bear that stamp: unique as long as
stamps leave the set all at once, which removal by score ensures, also when the clock goes back to
a stamp that was in use before. NX and the number that ZADD returns guard against members of other
clients: a name that is taken moves nothing and is made up for with the next one.

Members are added in chunks, because the arguments of one command must fit Lua's stack.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from .program import INSTANT, LuaProgram, whole

__all__ = ["SLIDING_WINDOW_LOG"]

_STAMPS = f"""
local function stampAt(rank)
  local place = string.format('%.0f', rank)
  return number(redis.call('ZRANGE', KEYS[1], place, place, 'WITHSCORES')[2], {INSTANT})
end
"""

_DECIDE = """
local edge = now - windowMs
local gone, count, oldest = 0, redis.call('ZCARD', KEYS[1]), now
if count > 0 then
  oldest = stampAt(0)
  if oldest <= edge then
    gone = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', edge))
    count, oldest = count - gone, now
    if count > 0 then oldest = stampAt(gone) end
  end
end
local resetAt = math.ceil(oldest + windowMs)

if count + cost > limit then
  local retry = windowMs
  if count > 0 then
    local k = math.min(math.max(count + cost - limit, 1), count)
    local stamp = stampAt(gone + k - 1)
    retry = math.max(1, math.ceil(stamp + windowMs - now))
  end
  return {0, limit, math.max(0, limit - count), resetAt, retry}
end

local newest = -1
if count > 0 then newest = stampAt(-1) end
if gone > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', edge))
end

local stamp, n = math.max(now, newest), 0
local score = string.format('%.0f', stamp)
if newest >= now then n = redis.call('ZCOUNT', KEYS[1], score, score) end
local missing = cost
while missing > 0 do
  local chunk = {}
  for i = 1, math.min(missing, 500) do
    chunk[2 * i - 1] = score
    chunk[2 * i] = string.format('u%.0f.%.0f', stamp, n)
    n = n + 1
  end
  missing = missing - redis.call('ZADD', KEYS[1], 'NX', unpack(chunk))
end
redis.call('PEXPIRE', KEYS[1], keepMs(stamp - now + windowMs))
return {1, limit, limit - count - cost, resetAt, 0}
"""

_READ = """
local units = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local scores = {}
for i = 2, #units, 2 do scores[i / 2] = units[i] end
return scores
"""

State = tuple[tuple[int, int], ...]


def _decode(raw: Any) -> State | None:
    stamps = groupby(whole(score) for score in raw)
    return tuple((stamp, sum(1 for _ in units)) for stamp, units in stamps) or None


SLIDING_WINDOW_LOG = LuaProgram(
    "slidingWindowLog",
    strategy="slidingWindowLog",
    argv=("now", "windowMs", "limit", "cost"),
    state="sorted set: one member per accepted unit, score its ms",
    check=_STAMPS + _DECIDE,
    read=_READ,
    raw="the scores, ascending, one per unit",
    decode=_decode,
)
