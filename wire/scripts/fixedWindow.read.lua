-- fixedWindow.read
-- KEYS  1 key
-- reply s and c, or nil twice
-- state hash: s start of the window, c count in it, each %.0f
return redis.call('HMGET', KEYS[1], 's', 'c')
