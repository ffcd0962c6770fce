-- fixedWindowFirst.check
-- KEYS  1 key
-- ARGV  1 now, 2 limit, 3 windowMs, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: s start of the window, c count in it, each %.0f

local FOREIGN = 'WRONGTYPE not the state of a fixedWindow'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

local now, cost = ARGV[1] + 0, ARGV[4] + 0
local p = {limit = ARGV[2] + 0, windowMs = ARGV[3] + 0, anchor = 'first'}

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

-- The fixed window: a hash of two fields, `s` the window's start and `c` its count.
--
-- Both anchors keep the same state and differ in one line, the window that `now` falls into. They
-- are two scripts, because a client that knows only the epoch's has no argument for the other.
--
-- Every admission sets the expiry, not only the one that opens a window: the next caller may have
-- been given a longer window, or a clock that is behind.
--
-- Whole numbers up to 2^53 divide and multiply exactly here: floor(now / windowMs) is never rounded
-- up to the next window, and a sum too large to be exact is above every limit anyway.
local function raw(key) return fieldsOf(key, 's', 'c') end

-- Decide.
local function read(key)
  local stored = raw(key)
  if stored[1] then
    local start = number(stored[1], WHOLE, MAX_STORED_MS)
    return {start = start, count = number(stored[2], WHOLE, MAX_SAFE)}
  end
end

local function windowAt(p, stored, now)
  local start = math.floor(now / p.windowMs) * p.windowMs
  if p.anchor == 'first' then
    start = now
    if stored and now - stored.start < p.windowMs then start = stored.start end
  end
  if stored and stored.start >= start then return stored.start, stored.count end
  return start, 0
end

local function check(p, stored, now, cost)
  local limit, windowMs = p.limit, p.windowMs
  local start, count = windowAt(p, stored, now)
  local resetAt = start + windowMs
  if count + cost > limit then
    return 0, limit, math.max(0, limit - count), resetAt, resetAt - now
  end
  count = count + cost
  return 1, limit, limit - count, resetAt, 0, {start = start, count = count}, resetAt - now
end

local function write(key, p, state, px)
  redis.call('HSET', key, 's', state.start, 'c', state.count)
  redis.call('PEXPIRE', key, px)
end


local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  check(p, read(key, p, now), now, cost)
if allowed == 1 then write(key, p, state, keepMs(ttl)) end
return {allowed, limit, remaining, resetAt, retryAfterMs}
