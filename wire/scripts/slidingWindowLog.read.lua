-- slidingWindowLog.read
-- KEYS  1 key
-- ARGV  none
-- reply the scores, ascending, one per unit
-- state sorted set: one member per accepted unit, score its ms

local FOREIGN = 'WRONGTYPE not the state of a slidingWindowLog'
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

-- The sliding window log: a sorted set with one member per admitted unit, scored in ms.
--
-- What counts and where the k-th unit stands is asked by score and by rank, in logarithmic time; the
-- set is never read whole to decide, and what the oldest and the newest unit tell is not asked for
-- again: each command called from Lua costs more than the work it does. Units that have left the
-- window are removed by the next admission, not by a denial, which writes nothing.
--
-- A member must be new to the set, or adding it would admit a unit without counting it. Ours are
-- "u<stamp>.<n>", n counting on from the units that already bear that stamp: unique as long as
-- stamps leave the set all at once, which removal by score ensures, also when the clock goes back to
-- a stamp that was in use before. NX and the number that ZADD returns guard against members of other
-- clients: a name that is taken moves nothing and is made up for with the next one.
local function raw(key)
  local units, scores = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}
  for i = 2, #units, 2 do scores[i / 2] = units[i] end
  return scores
end

return raw(KEYS[1])
