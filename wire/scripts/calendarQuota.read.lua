-- calendarQuota.read
-- KEYS  1 key
-- ARGV  none
-- reply s, e and c, or nil three times
-- state hash: s start of the period, e its end, c count in it, each %.0f

local FOREIGN = 'WRONGTYPE not the state of a calendarQuota'
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

-- The calendar quota: a hash of three fields, `s` the period's start, `e` its end, `c` its count.
--
-- There is no calendar here. The caller sends where the period that it sees starts and ends, and
-- where the one before it starts and the one after it ends; which of the three is the present one
-- is for the clock that decides. One that is outside all of them is an error, not a guess.
--
-- A stored period that starts no earlier and is not over stands, with the end that it was given:
-- after a jump back it may be none of the three.
local function raw(key)
  local stored = redis.call('HMGET', key, 's', 'e', 'c')
  local complete = stored[1] and stored[2] and stored[3]
  if not complete and redis.call('HLEN', key) > 0 then foreign() end
  return stored
end

return raw(KEYS[1])
