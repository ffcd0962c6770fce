-- tokenBucket.check
-- KEYS  1 key
-- ARGV  1 now, 2 capacity, 3 refillPerSec, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: t tokens, %.17g; l the last ms credited, %.0f

local FOREIGN = 'WRONGTYPE not the state of a tokenBucket'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

local now, cost = tonumber(ARGV[1]), tonumber(ARGV[4])
local p = {capacity = tonumber(ARGV[2]), refillPerSec = tonumber(ARGV[3])}

-- What every strategy's file may use.
local call, format, find, match = redis.call, string.format, string.find, string.match
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local tonumber = tonumber

-- Raised as text, which servers before Redis 7 can report too.
local function foreign() error(FOREIGN, 0) end

-- A number from the text of a state: of this form, and no larger than `most`.
local function number(text, form, most)
  local value = find(text, form) and tonumber(text)
  if not value or value > most then foreign() end
  return value
end

-- The two fields that a hash consists of, or false twice where there is no hash.
local function fieldsOf(key, first, second)
  local stored = call('HMGET', key, first, second)
  if not (stored[1] and stored[2]) and call('HLEN', key) > 0 then foreign() end
  return stored
end

local WHOLE, REAL, SIGNED = '^%d+$', '^%d+%.?%d*e?-?%d*$', '^-?%d+%.?%d*e?-?%d*$'

-- The server's clock is read once at most, so that all keys of a call are decided at one instant.
local ownClock, serverNow = now == 0, nil
local function serverMs()
  if not serverNow then
    local time = call('TIME')
    serverNow = time[1] * 1000 + floor(time[2] / 1000)
  end
  return serverNow
end
if ownClock then now = serverMs() end

-- For how long a key is kept whose state matters for `ttl`. A whole number, which servers turn into
-- text with all its digits.
local function keepMs(ttl)
  local ahead = ownClock and 0 or max(0, now - serverMs())
  return ahead + ttl + min(max(ttl, MARGIN_MS), MAX_MARGIN_MS)
end

-- The token bucket: a hash of two fields, `t` tokens and `l` the instant they count for.
--
-- `t` is a double with all its digits; a bucket that was rounded on every visit would leak or gain.
-- A bucket that outlives its ttl has refilled by the same arithmetic, so it decides like a fresh
-- one.
local function raw(key) return fieldsOf(key, 't', 'l') end

-- Decide.
local function read(key)
  local stored = raw(key)
  if stored[1] then
    local tokens = number(stored[1], SIGNED, MAX_SAFE)
    if tokens < -MAX_SAFE then foreign() end
    return {tokens = tokens, last = number(stored[2], WHOLE, MAX_STORED_MS)}
  end
end

local function level(p, stored, now)
  if not stored then return p.capacity, now end
  if now <= stored.last then return min(p.capacity, stored.tokens), stored.last end
  return min(p.capacity, stored.tokens + (now - stored.last) * (p.refillPerSec / 1000)), now
end

local function check(p, stored, now, cost)
  local capacity, rate = p.capacity, p.refillPerSec / 1000
  local tokens, at = level(p, stored, now)
  if tokens < cost then
    local resetAt = at + ceil((capacity - tokens) / rate)
    local retry = min((at - now) + ceil((cost - tokens) / rate), MAX_SAFE)
    return 0, capacity, max(0, floor(tokens)), resetAt, retry
  end
  tokens = tokens - cost
  local resetAt = at + ceil((capacity - tokens) / rate)
  local ttl = (at - now) + max(1, ceil(capacity / rate))
  return 1, capacity, floor(tokens), resetAt, 0, {tokens = tokens, last = at}, ttl
end

local function write(key, p, state, px)
  call('HSET', key, 't', format('%.17g', state.tokens), 'l', state.last)
  call('PEXPIRE', key, px)
end


local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  check(p, read(key, p, now), now, cost)
if allowed == 1 then write(key, p, state, keepMs(ttl)) end
return {allowed, limit, remaining, resetAt, retryAfterMs}
