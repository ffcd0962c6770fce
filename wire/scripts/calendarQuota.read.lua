-- calendarQuota.read
-- KEYS  1 key
-- ARGV  none
-- reply s, e and c, or nil three times
-- state hash: s start of the period, e its end, c count in it, each %.0f
local FOREIGN = 'WRONGTYPE not the state of a calendarQuota'
local function raw(key)
  local stored = redis.call('HMGET', key, 's', 'e', 'c')
  local complete = stored[1] and stored[2] and stored[3]
  if not complete and redis.call('HLEN', key) > 0 then error(FOREIGN, 0) end
  return stored
end
return raw(KEYS[1])
