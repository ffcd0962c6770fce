"""The token bucket in Lua: a hash of two fields, `t` tokens and `l` the instant they count for.

`t` is a double with all its digits; a bucket that was rounded on every visit would leak or gain.
A bucket that outlives its ttl has refilled by the same arithmetic, so it decides like a fresh one.
"""

from __future__ import annotations

from typing import Any

from .program import LuaProgram

__all__ = ["TOKEN_BUCKET"]

_CHECK = """
local rate = refillPerSec / 1000

local tokens, at = capacity, now
local stored = redis.call('HMGET', KEYS[1], 't', 'l')
if stored[1] and stored[2] then
  local last = tonumber(stored[2])
  tokens = tonumber(stored[1])
  if now <= last then
    tokens, at = math.min(capacity, tokens), last
  else
    tokens = math.min(capacity, tokens + (now - last) * rate)
  end
end

if tokens < cost then
  local resetAt = at + math.ceil((capacity - tokens) / rate)
  local retry = math.min((at - now) + math.ceil((cost - tokens) / rate), 9007199254740991)
  return {0, capacity, math.floor(tokens), resetAt, retry}
end

tokens = tokens - cost
local ttl = (at - now) + math.max(1, math.ceil(capacity / rate))
redis.call('HSET', KEYS[1], 't', string.format('%.17g', tokens), 'l', string.format('%.0f', at))
redis.call('PEXPIRE', KEYS[1], keepMs(ttl))
return {1, capacity, math.floor(tokens), at + math.ceil((capacity - tokens) / rate), 0}
"""

_READ = """
return redis.call('HMGET', KEYS[1], 't', 'l')
"""


def _decode(raw: Any) -> tuple[float, int] | None:
    tokens, last = raw
    return None if tokens is None or last is None else (float(tokens), int(last))


TOKEN_BUCKET = LuaProgram(
    "tokenBucket",
    strategy="tokenBucket",
    argv=("now", "capacity", "refillPerSec", "cost"),
    state="hash: t tokens, %.17g; l the last ms credited, %.0f",
    check=_CHECK,
    read=_READ,
    raw="t and l, or nil twice",
    decode=_decode,
)
