-- slidingWindow.read
-- KEYS  1 key
-- reply field, "<tick>:<count>", field, "<tick>:<count>", ...
-- state hash: field tick % (buckets + 1), value "<tick>:<count>", each %.0f
return redis.call('HGETALL', KEYS[1])
