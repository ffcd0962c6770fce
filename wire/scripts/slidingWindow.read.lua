-- slidingWindow.read
-- KEYS  1 key
-- ARGV  none
-- reply field, "<tick>:<count>", field, "<tick>:<count>", ...
-- state hash: field tick % (buckets + 1), value "<tick>:<count>", each %.0f
local function raw(key)
  return redis.call('HGETALL', key)
end
return raw(KEYS[1])
