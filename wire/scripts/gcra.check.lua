-- gcra.check
-- KEYS  1 key
-- ARGV  1 now, 2 periodMs, 3 limit, 4 burst, 5 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state string: the TAT, %.17g

local FOREIGN = 'WRONGTYPE not the state of a gcra'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

local now, cost = ARGV[1] + 0, ARGV[5] + 0
local p = {periodMs = ARGV[2] + 0, limit = ARGV[3] + 0, burst = ARGV[4] + 0}

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

-- GCRA: one string, the TAT, written with all 17 digits.
--
-- A denial reads and answers; an admission is one SET that carries its expiry. A stored TAT before
-- `now` counts as `now`, so a key that outlives its ttl decides like one that is gone.
local function raw(key) return redis.call('GET', key) end

-- Decide.
local function read(key)
  local text = raw(key)
  -- The TAT has a fraction, and no exponent: with 17 digits there is none below 1e17.
  return text and number(text, '^%d+%.?%d*$', MAX_STORED_MS)
end

local function intervalOf(p) return math.floor(p.periodMs * 2048 / p.limit) / 2048 end

local function check(p, stored, now, cost)
  local interval = intervalOf(p)
  local tau = interval * p.burst
  local tat = stored and stored > now and stored or now
  local new = tat + interval * cost
  local allowAt = new - tau
  if now < allowAt then
    local remaining = math.max(0, math.floor((tau - (tat - now)) / interval))
    return 0, p.burst, remaining, math.ceil(tat), math.min(math.ceil(allowAt - now), MAX_SAFE)
  end
  local remaining = math.max(0, math.floor((tau - (new - now)) / interval))
  return 1, p.burst, remaining, math.ceil(new), 0, new, math.max(1, math.ceil(new - now))
end

local function write(key, p, tat, px)
  redis.call('SET', key, string.format('%.17g', tat), 'PX', px)
end


local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  check(p, read(key, p, now), now, cost)
if allowed == 1 then write(key, p, state, keepMs(ttl)) end
return {allowed, limit, remaining, resetAt, retryAfterMs}
