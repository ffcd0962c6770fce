-- gcra.read
-- KEYS  1 key
-- ARGV  none
-- reply the TAT, or nil
-- state string: the TAT, %.17g
local function raw(key)
  return redis.call('GET', key)
end
return raw(KEYS[1])
