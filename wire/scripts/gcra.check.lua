-- gcra.check
-- KEYS  1 key
-- ARGV  1 now, 2 periodMs, 3 limit, 4 burst, 5 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state string: the TAT, %.17g

local FOREIGN = 'WRONGTYPE not the state of a gcra'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

local now, cost = tonumber(ARGV[1]), tonumber(ARGV[5])
local p = {periodMs = tonumber(ARGV[2]), limit = tonumber(ARGV[3]), burst = tonumber(ARGV[4])}

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

-- GCRA: one string, the TAT, written with all 17 digits.
--
-- A denial reads and answers; an admission is one SET that carries its expiry. A stored TAT before
-- `now` counts as `now`, so a key that outlives its ttl decides like one that is gone.
local function raw(key) return call('GET', key) end

-- Decide.
local function read(key)
  local text = raw(key)
  -- The TAT has a fraction, and no exponent: with 17 digits there is none below 1e17.
  return text and number(text, '^%d+%.?%d*$', MAX_STORED_MS)
end

local function intervalOf(p) return floor(p.periodMs * 2048 / p.limit) / 2048 end

local function check(p, stored, now, cost)
  local interval = intervalOf(p)
  local tau = interval * p.burst
  local tat = max(stored or now, now)
  local new = tat + interval * cost
  local allowAt = new - tau
  if now < allowAt then
    local remaining = max(0, floor((tau - (tat - now)) / interval))
    return 0, p.burst, remaining, ceil(tat), min(ceil(allowAt - now), MAX_SAFE)
  end
  local remaining = max(0, floor((tau - (new - now)) / interval))
  return 1, p.burst, remaining, ceil(new), 0, new, max(1, ceil(new - now))
end

local function write(key, p, tat, px)
  call('SET', key, format('%.17g', tat), 'PX', px)
end


local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  check(p, read(key, p, now), now, cost)
if allowed == 1 then write(key, p, state, keepMs(ttl)) end
return {allowed, limit, remaining, resetAt, retryAfterMs}
