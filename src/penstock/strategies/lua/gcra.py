"""GCRA in Lua: one string, the TAT, written with all 17 digits.

A denial reads and answers; an admission is one SET that carries its expiry. A stored TAT before
`now` counts as `now`, so a key that outlives its ttl decides like one that is gone.

Being a string, the state of many keys is read by one MGET and, where the server has MSETEX, as
Valkey 9.1 does, and lets the caller use it, written by one or two commands: to call a command from
Lua costs more than a small command itself. Three things need care:

- MGET calls a key of another type empty, and SET and MSETEX overwrite it. So what looks empty is
  written only if it does not exist (NX); if it does, GET says WRONGTYPE, as it does to a check.
- A key may come twice. `written` knows where its new TAT stands, and the later request reads that.
- MSETEX has one expiry for all: that of the key which needs it longest. An admitted key's ttl is
  at most burst * interval, so that is no longer than the key itself may need at other times.

Keys with one TAT have one answer, and in a batch neighbours often do: those that are idle, and
those that were last charged together. So an answer is kept until a key needs another.
"""

from __future__ import annotations

from typing import Any

from ...core.validation import MAX_STORED_MS
from .program import LuaProgram, real

__all__ = ["GCRA"]

_CHECK = """
local interval = math.floor(periodMs * 2048 / limit) / 2048
local tau = interval * burst

local tat = now
local stored = redis.call('GET', KEYS[1])
if stored then tat = math.max(number(stored, {form}), now) end

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

_MANY = """
local interval = floor(periodMs * 2048 / limit) / 2048
local tau = interval * burst
local step = interval * cost

local keys = KEYS
local stored = call('MGET', unpack(keys))
local absent, present, written = {}, {}, {}
local last, tat, text
local longest = 1

local runs, run = {burst}, -2
for place = 1, #keys do
  local key, state = keys[place], stored[place]
  local list = state and present or absent
  local at = written[key]
  if at then state = list[at] end

  if state ~= last then
    local before = tat
    last, tat = state, now
    if state then tat = number(state, {form}) end
    if tat < now then tat = now end
    if tat ~= before then
      local new = tat + step
      local allowAt = new - tau
      local retry, after = 0, new
      if now < allowAt then
        retry, after, text = min(ceil(allowAt - now), 9007199254740991), tat, nil
      else
        text = format('%.17g', new)
      end
      local used = after - now
      if text and used > longest then longest = used end
      local remaining = floor((tau - used) / interval)
      if remaining < 0 then remaining = 0 end
      run = run + 4
      runs[run], runs[run + 1], runs[run + 2], runs[run + 3] = 0, remaining, ceil(after), retry
    end
  end
  runs[run] = runs[run] + 1

  if not text then
    if not state then call('GET', key) end
  elseif at then
    list[at] = text
  else
    at = #list + 2
    list[at - 1], list[at], written[key] = key, text, at
  end
end

local known, allowed = pcall(redis.acl_check_cmd, 'MSETEX', '1', keys[1], '', 'PX', '1')
local px = keepMs(ceil(longest))

local function write(list, ...)
  local size, done = #list, true
  if known and allowed and size > 0 then
    local options = {'PX', px, ...}
    for i = 1, #options do list[size + i] = options[i] end
    return call('MSETEX', format('%.0f', size / 2), unpack(list)) == 1
  end
  for i = 1, size, 2 do
    done = call('SET', list[i], list[i + 1], 'PX', px, ...) and done
  end
  return done
end

if not write(absent, 'NX') then
  for place = 1, #keys do call('GET', keys[place]) end
end
write(present)
return runs
"""

_READ = """
return redis.call('GET', KEYS[1])
"""

# The TAT has a fraction, and no exponent: with 17 digits there is none below 1e17.
_FORM = f"'^%d+%.?%d*$', {MAX_STORED_MS}"


def _decode(raw: Any) -> float | None:
    return None if raw is None else real(raw)


GCRA = LuaProgram(
    "gcra",
    strategy="gcra",
    argv=("now", "periodMs", "limit", "burst", "cost"),
    state="string: the TAT, %.17g",
    check=_CHECK.replace("{form}", _FORM),
    read=_READ,
    raw="the TAT, or nil",
    decode=_decode,
    many=_MANY.replace("{form}", _FORM),
)
