-- fixedWindow.read
-- KEYS  1 key
-- ARGV  none
-- reply s and c, or nil twice
-- state hash: s start of the window, c count in it, each %.0f
local FOREIGN = 'WRONGTYPE not the state of a fixedWindow'
local function fieldsOf(key, first, second)
  local stored = redis.call('HMGET', key, first, second)
  if not (stored[1] and stored[2]) and redis.call('HLEN', key) > 0 then error(FOREIGN, 0) end
  return stored
end
local function raw(key)
  return fieldsOf(key, 's', 'c')
end
return raw(KEYS[1])
