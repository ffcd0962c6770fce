-- tokenBucket.read
-- KEYS  1 key
-- ARGV  none
-- reply t and l, or nil twice
-- state hash: t tokens, %.17g; l the last ms credited, %.0f

local FOREIGN = 'WRONGTYPE not the state of a tokenBucket'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

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

-- The token bucket: a hash of two fields, `t` tokens and `l` the instant they count for.
--
-- `t` is a double with all its digits; a bucket that was rounded on every visit would leak or gain.
-- A bucket that outlives its ttl has refilled by the same arithmetic, so it decides like a fresh
-- one.
local function raw(key) return fieldsOf(key, 't', 'l') end

return raw(KEYS[1])
