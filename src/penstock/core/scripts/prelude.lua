-- What every strategy's file may use.
local call, format, find, match = redis.call, string.format, string.find, string.match
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local tonumber = tonumber

-- Raised as text, which servers before Redis 7 can report too.
local function foreign() error(FOREIGN, 0) end

-- A number from the text of a state: of this form, and no larger than `most`.
local function number(text, form, most)
  local value = find(text, form) and tonumber(text)
  if not value or value > most then foreign() end
  return value
end

-- The two fields that a hash consists of, or false twice where there is no hash.
local function fieldsOf(key, first, second)
  local stored = call('HMGET', key, first, second)
  if not (stored[1] and stored[2]) and call('HLEN', key) > 0 then foreign() end
  return stored
end

local WHOLE, REAL, SIGNED = '^%d+$', '^%d+%.?%d*e?-?%d*$', '^-?%d+%.?%d*e?-?%d*$'
