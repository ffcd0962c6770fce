-- gcra.read
-- KEYS  1 key
-- ARGV  none
-- reply the TAT, or nil
-- state string: the TAT, %.17g

-- GCRA: one string, the TAT, written with all 17 digits.
--
-- A denial reads and answers; an admission is one SET that carries its expiry. A stored TAT before
-- `now` counts as `now`, so a key that outlives its ttl decides like one that is gone.
local function raw(key) return redis.call('GET', key) end

return raw(KEYS[1])
