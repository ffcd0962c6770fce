-- slidingWindowLog.read
-- KEYS  1 key
-- ARGV  none
-- reply the scores, ascending, one per unit; that of a pause behind the word pause
-- state sorted set: one member per accepted unit, score its ms
local function raw(key)
  local units, scores = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}
  for i = 2, #units, 2 do
    scores[i / 2] = string.format(units[i - 1] == 'pause' and 'pause%s' or '%s', units[i])
  end
  return scores
end
return raw(KEYS[1])
