-- fixedWindowFirst.read
-- KEYS  1 key
-- reply s and c, or nil twice
-- state hash: s start of the window, c count in it, each %.0f
local function foreign() error('WRONGTYPE not the state of a fixedWindow', 0) end

local stored = redis.call('HMGET', KEYS[1], 's', 'c')
local isStored = stored[1] and stored[2]
if not isStored and redis.call('HLEN', KEYS[1]) > 0 then foreign() end
return stored
