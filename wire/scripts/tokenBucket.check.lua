-- tokenBucket.check
-- KEYS  1 key
-- ARGV  1 now, 2 capacity, 3 refillPerSec, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: t tokens, %.17g; l the last ms credited, %.0f

local FOREIGN = 'WRONGTYPE not the state of a tokenBucket'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

local now, cost = ARGV[1] + 0, ARGV[4] + 0
local p = {capacity = ARGV[2] + 0, refillPerSec = ARGV[3] + 0}

-- What every strategy's file may use, beside what Lua and Redis have. Those are called by their own
-- names: a function that uses a local of the script costs a server more than four look-ups.

-- Raised as text, which servers before Redis 7 can report too.
local function foreign() error(FOREIGN, 0) end

-- A number from the text of a state: of this form, and no larger than `most`.
local function number(text, form, most)
  local value = string.find(text, form) and text + 0
  if not value or value > most then foreign() end
  return value
end

-- The two fields that a hash consists of, or false twice where there is no hash.
local function fieldsOf(key, first, second)
  local stored = redis.call('HMGET', key, first, second)
  if not (stored[1] and stored[2]) and redis.call('HLEN', key) > 0 then foreign() end
  return stored
end

local WHOLE, REAL, SIGNED = '^%d+$', '^%d+%.?%d*e?-?%d*$', '^-?%d+%.?%d*e?-?%d*$'

-- The server's clock is read once, so that all keys of a call are decided at one instant.
local time = redis.call('TIME')
local serverNow = time[1] * 1000 + math.floor(time[2] / 1000)
if now == 0 then now = serverNow end

-- For how long a key is kept whose state matters for `ttl`; longer if the caller is ahead of the
-- server. A whole number, which servers turn into text with all its digits.
local ahead = math.max(0, now - serverNow)
local function keepMs(ttl)
  local margin = ttl
  if margin < MARGIN_MS then margin = MARGIN_MS end
  if margin > MAX_MARGIN_MS then margin = MAX_MARGIN_MS end
  return ahead + ttl + margin
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
  local tokens, at = stored.tokens, stored.last
  if now > at then tokens, at = tokens + (now - at) * (p.refillPerSec / 1000), now end
  return tokens < p.capacity and tokens or p.capacity, at
end

local function check(p, stored, now, cost)
  local capacity, rate = p.capacity, p.refillPerSec / 1000
  local tokens, at = level(p, stored, now)
  if tokens < cost then
    local resetAt = at + math.ceil((capacity - tokens) / rate)
    local retry = math.min((at - now) + math.ceil((cost - tokens) / rate), MAX_SAFE)
    return 0, capacity, math.max(0, math.floor(tokens)), resetAt, retry
  end
  tokens = tokens - cost
  local resetAt = at + math.ceil((capacity - tokens) / rate)
  local ttl = (at - now) + math.max(1, math.ceil(capacity / rate))
  return 1, capacity, math.floor(tokens), resetAt, 0, {tokens = tokens, last = at}, ttl
end

local function write(key, p, state, px)
  redis.call('HSET', key, 't', string.format('%.17g', state.tokens), 'l', state.last)
  redis.call('PEXPIRE', key, px)
end


local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  check(p, read(key, p, now), now, cost)
if allowed == 1 then write(key, p, state, keepMs(ttl)) end
return {allowed, limit, remaining, resetAt, retryAfterMs}
