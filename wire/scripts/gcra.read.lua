-- gcra.read
-- KEYS  1 key
-- reply the TAT, or nil
-- state string: the TAT, %.17g
return redis.call('GET', KEYS[1])
