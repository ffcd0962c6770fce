-- slidingWindowLog.read
-- KEYS  1 key
-- ARGV  none
-- reply the scores, ascending, one per unit
-- state sorted set: one member per accepted unit, score its ms

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
