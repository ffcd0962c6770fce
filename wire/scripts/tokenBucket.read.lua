-- tokenBucket.read
-- KEYS  1 key
-- reply t and l, or nil twice
-- state hash: t tokens, %.17g; l the last ms credited, %.0f
local function foreign() error('WRONGTYPE not the state of a tokenBucket', 0) end

local stored = redis.call('HMGET', KEYS[1], 't', 'l')
local isStored = stored[1] and stored[2]
if not isStored and redis.call('HLEN', KEYS[1]) > 0 then foreign() end
return stored
