-- slidingWindowLog.read
-- KEYS  1 key
-- reply the scores, ascending, one per unit
-- state sorted set: one member per accepted unit, score its ms
local units = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local scores = {}
for i = 2, #units, 2 do scores[i / 2] = units[i] end
return scores
