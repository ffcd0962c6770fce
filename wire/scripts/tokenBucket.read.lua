-- tokenBucket.read
-- KEYS  1 key
-- reply t and l, or nil twice
-- state hash: t tokens, %.17g; l the last ms credited, %.0f
return redis.call('HMGET', KEYS[1], 't', 'l')
