-- tokenBucket.read
-- KEYS  1 key
-- ARGV  none
-- reply t and l, or nil twice
-- state hash: t tokens, %.17g; l the last ms credited, %.0f

-- The token bucket: a hash of two fields, `t` tokens and `l` the instant they count for.
--
-- `t` is a double with all its digits; a bucket that was rounded on every visit would leak or gain.
-- A bucket that outlives its ttl has refilled by the same arithmetic, so it decides like a fresh
-- one.
local function raw(key) return redis.call('HMGET', key, 't', 'l') end

return raw(KEYS[1])
