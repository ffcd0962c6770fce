"""The token bucket in Lua: a hash of two fields, `t` tokens and `l` the instant they count for.

`t` is a double with all its digits; a bucket that was rounded on every visit would leak or gain.
A bucket that outlives its ttl has refilled by the same arithmetic, so it decides like a fresh one.
"""

from __future__ import annotations

from typing import Any

from ...core.validation import MAX_SAFE
from .program import INSTANT, LuaProgram, fields_of_hash, hash_of, real, whole

__all__ = ["TOKEN_BUCKET"]

_LOAD = hash_of("t", "l")

_DECIDE = f"""
local rate = refillPerSec / 1000

local tokens, at = capacity, now
if isStored then
  local last = number(stored[2], {INSTANT})
  tokens = number(stored[1], '^%d+%.?%d*e?-?%d*$', {MAX_SAFE})
  if now <= last then
    tokens, at = math.min(capacity, tokens), last
  else
    tokens = math.min(capacity, tokens + (now - last) * rate)
  end
end

if tokens < cost then
  local resetAt = at + math.ceil((capacity - tokens) / rate)
  local retry = math.min((at - now) + math.ceil((cost - tokens) / rate), {MAX_SAFE})
  return {{0, capacity, math.floor(tokens), resetAt, retry}}
end

tokens = tokens - cost
local ttl = (at - now) + math.max(1, math.ceil(capacity / rate))
redis.call('HSET', KEYS[1], 't', string.format('%.17g', tokens), 'l', string.format('%.0f', at))
redis.call('PEXPIRE', KEYS[1], keepMs(ttl))
return {{1, capacity, math.floor(tokens), at + math.ceil((capacity - tokens) / rate), 0}}
"""


def _decode(raw: Any) -> tuple[float, int] | None:
    fields = fields_of_hash(raw)
    return None if fields is None else (real(fields[0]), whole(fields[1]))


TOKEN_BUCKET = LuaProgram(
    "tokenBucket",
    strategy="tokenBucket",
    argv=("now", "capacity", "refillPerSec", "cost"),
    state="hash: t tokens, %.17g; l the last ms credited, %.0f",
    check=_LOAD + _DECIDE.lstrip("\n"),
    read=f"{_LOAD}return stored\n",
    raw="t and l, or nil twice",
    decode=_decode,
)
