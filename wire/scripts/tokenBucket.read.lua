-- tokenBucket.read
-- KEYS  1 key
-- ARGV  none
-- reply t and l, or nil twice
-- state hash: t tokens, %.17g; l the last ms credited, %.0f
local FOREIGN = 'WRONGTYPE not the state of a tokenBucket'
local function fieldsOf(key, first, second)
  local stored = redis.call('HMGET', key, first, second)
  if not (stored[1] and stored[2]) and redis.call('HLEN', key) > 0 then error(FOREIGN, 0) end
  return stored
end
local function raw(key)
  return fieldsOf(key, 't', 'l')
end
return raw(KEYS[1])
