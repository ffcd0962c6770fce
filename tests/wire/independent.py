"""A second client of the contract, which shares nothing with ours.

It was written from the contract's text alone: its own Lua, its own way to name the members of a
log, its own idea of how late a key may expire, and a bare socket instead of a client library. It
imports nothing from the package.
"""

from __future__ import annotations

import hashlib
import socket
from typing import Any

_START = """
local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call("TIME")
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local key = KEYS[1]
local function int(x) return string.format("%.0f", x) end
local function expire(ttl) redis.call("PEXPIRE", key, int(ttl * 3 + 120000)) end
local MAX = 9007199254740991
"""

GCRA = """
local period, limit, burst, cost = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local T = math.floor(period * 2048 / limit) / 2048
local tau = T * burst
local tat = tonumber(redis.call("GET", key) or ARGV[1])
if tat < now then tat = now end
local new = tat + T * cost
local allow_at = new - tau
if now < allow_at then
  local left = math.floor((tau - (tat - now)) / T)
  if left < 0 then left = 0 end
  local wait = math.ceil(allow_at - now)
  if wait > MAX then wait = MAX end
  return {0, burst, left, math.ceil(tat), wait}
end
redis.call("SET", key, string.format("%.17g", new))
expire(math.ceil(new - now))
local left = math.floor((tau - (new - now)) / T)
if left < 0 then left = 0 end
return {1, burst, left, math.ceil(new), 0}
"""

TOKEN_BUCKET = """
local capacity, rate, cost = ARGV[2] + 0, ARGV[3] / 1000, ARGV[4] + 0
local tokens, last = capacity, now
if redis.call("EXISTS", key) == 1 then
  tokens = tonumber(redis.call("HGET", key, "t"))
  last = tonumber(redis.call("HGET", key, "l"))
end
local elapsed = math.max(0, now - last)
tokens = math.min(capacity, tokens + elapsed * rate)
local eff = math.max(now, last)
if tokens >= cost then
  tokens = tokens - cost
  redis.call("HSET", key, "t", string.format("%.17g", tokens))
  redis.call("HSET", key, "l", int(eff))
  expire((eff - now) + math.ceil(capacity / rate))
  return {1, capacity, math.floor(tokens), eff + math.ceil((capacity - tokens) / rate), 0}
end
local wait = math.min(MAX, (eff - now) + math.ceil((cost - tokens) / rate))
return {0, capacity, math.floor(tokens), eff + math.ceil((capacity - tokens) / rate), wait}
"""

_COUNT_IN_WINDOW = """
local count = 0
if s and s == start then count = tonumber(redis.call("HGET", key, "c")) end
local reset = start + window
if count + cost <= limit then
  redis.call("HSET", key, "s", int(start), "c", int(count + cost))
  expire(reset - now)
  return {1, limit, limit - (count + cost), reset, 0}
end
return {0, limit, math.max(0, limit - count), reset, reset - now}
"""

FIXED_WINDOW = (
    """
local limit, window, cost = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local start = math.floor(now / window) * window
local s = tonumber(redis.call("HGET", key, "s") or nil)
if s and s > start then start = s end
"""
    + _COUNT_IN_WINDOW
)

FIXED_WINDOW_FIRST = (
    """
local limit, window, cost = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local start = now
local s = tonumber(redis.call("HGET", key, "s") or nil)
if s and now - s < window then start = s end
"""
    + _COUNT_IN_WINDOW
)

CALENDAR_QUOTA = """
local limit, cost = ARGV[2] + 0, ARGV[7] + 0
local edges, from, to = {ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0}, nil, nil
for i = 1, 3 do
  if edges[i] <= now and now < edges[i + 1] then from, to = edges[i], edges[i + 1] end
end
if not from then return redis.error_reply("OTHERPERIOD the server shows " .. int(now)) end
local count = 0
if redis.call("EXISTS", key) == 1 then
  local s, e = redis.call("HGET", key, "s") + 0, redis.call("HGET", key, "e") + 0
  if s >= from and e > now then from, to, count = s, e, redis.call("HGET", key, "c") + 0 end
end
if count + cost <= limit then
  redis.call("HSET", key, "s", int(from), "e", int(to), "c", int(count + cost))
  expire(to - now)
  return {1, limit, limit - (count + cost), to, 0}
end
return {0, limit, math.max(0, limit - count), to, to - now}
"""

SLIDING_WINDOW = """
local window, limit, cost, buckets = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local w = window / buckets
local c = math.floor(now / w)
local count = {}
for _, value in ipairs(redis.call("HVALS", key)) do
  local colon = string.find(value, ":", 1, true)
  local tick = tonumber(string.sub(value, 1, colon - 1))
  count[tick] = tonumber(string.sub(value, colon + 1))
  c = math.max(c, tick)
end
local elapsed = math.max(0, now - c * w)
local weight = math.max(0, math.min(1, (w - elapsed) / w))
local full = 0
for tick, n in pairs(count) do
  if tick >= c - buckets + 1 and tick <= c then full = full + n end
end
local oldest = count[c - buckets] or 0
local estimate = full + oldest * weight
local projected = estimate + cost
local reset = math.ceil((c + 1) * w + window)
if projected <= limit then
  local sum = (count[c] or 0) + cost
  redis.call("HSET", key, int(c % (buckets + 1)), int(c) .. ":" .. int(sum))
  expire(reset - now + 1)
  return {1, limit, math.max(0, math.floor(limit - projected)), reset, 0}
end
local excess = projected - limit
local wait = math.ceil((c + 1) * w - now)
if oldest > 0 and excess <= oldest * weight then wait = math.ceil(excess * w / oldest) end
return {0, limit, math.max(0, math.floor(limit - estimate)), reset, math.max(1, wait)}
"""

SLIDING_WINDOW_LOG = """
local window, limit, cost = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local log = {}
local units = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
for i = 2, #units, 2 do
  if tonumber(units[i]) > now - window then log[#log + 1] = tonumber(units[i]) end
end
local n = #log
local oldest = log[1] or now
local reset = math.ceil(oldest + window)
if n + cost <= limit then
  redis.call("ZREMRANGEBYSCORE", key, "-inf", int(now - window))
  local stamp = math.max(now, log[n] or now)
  local serial = 0
  for _ = 1, cost do
    repeat
      serial = serial + 1
      local added = redis.call("ZADD", key, "NX", int(stamp), int(stamp) .. "-" .. int(serial))
    until added == 1
  end
  expire(stamp - now + window)
  return {1, limit, limit - n - cost, reset, 0}
end
local wait = window
if n > 0 then
  local k = math.max(1, math.min(n, n + cost - limit))
  wait = math.max(1, math.ceil(log[k] + window - now))
end
return {0, limit, math.max(0, limit - n), reset, wait}
"""

SCRIPTS = {
    name: _START + body
    for name, body in {
        "gcra": GCRA,
        "tokenBucket": TOKEN_BUCKET,
        "fixedWindow": FIXED_WINDOW,
        "fixedWindowFirst": FIXED_WINDOW_FIRST,
        "calendarQuota": CALENDAR_QUOTA,
        "slidingWindow": SLIDING_WINDOW,
        "slidingWindowLog": SLIDING_WINDOW_LOG,
    }.items()
}


class IndependentClient:
    """Checks over one socket: EVALSHA, and EVAL when the server does not know the script."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=10)
        self._replies = self._socket.makefile("rb")

    def check(self, kind: str, key: str, *argv: object) -> tuple[int, ...]:
        source = SCRIPTS[kind]
        sha1 = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        reply = self._call("EVALSHA", sha1, 1, key, *argv)
        if isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT"):
            reply = self._call("EVAL", source, 1, key, *argv)
        if isinstance(reply, Exception):
            raise reply
        return tuple(reply)

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def _call(self, *words: object) -> Any:
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        request = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self._socket.sendall(b"*%d\r\n" % len(parts) + request)
        return self._reply()

    def _reply(self) -> Any:
        line = self._replies.readline()
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"-":
            return RuntimeError(rest)
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        raise RuntimeError(f"a check answers with integers, not {line!r}")
