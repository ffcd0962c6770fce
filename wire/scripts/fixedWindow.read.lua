-- fixedWindow.read
-- KEYS  1 key
-- ARGV  none
-- reply s and c, or nil twice
-- state hash: s start of the window, c count in it, each %.0f

local FOREIGN = 'WRONGTYPE not the state of a fixedWindow'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

-- What every strategy's file may use, beside what Lua and Redis have. Those are called by their own
-- names: a function that uses a local of the script costs a server more than four look-ups.

-- Raised as text, which servers before Redis 7 can report too.
local function foreign() error(FOREIGN, 0) end

-- A number from the text of a state: of this form, and no larger than `most`.
local function number(text, form, most)
  local value = string.find(text, form) and text + 0
  if not value or value > most then foreign() end
  return value
end

-- The two fields that a hash consists of, or false twice where there is no hash.
local function fieldsOf(key, first, second)
  local stored = redis.call('HMGET', key, first, second)
  if not (stored[1] and stored[2]) and redis.call('HLEN', key) > 0 then foreign() end
  return stored
end

local WHOLE, REAL, SIGNED = '^%d+$', '^%d+%.?%d*e?-?%d*$', '^-?%d+%.?%d*e?-?%d*$'

-- The fixed window: a hash of two fields, `s` the window's start and `c` its count.
--
-- Both anchors keep the same state and differ in one line, the window that `now` falls into. They
-- are two scripts, because a client that knows only the epoch's has no argument for the other.
--
-- Every admission sets the expiry, not only the one that opens a window: the next caller may have
-- been given a longer window, or a clock that is behind.
--
-- Whole numbers up to 2^53 divide and multiply exactly here: floor(now / windowMs) is never rounded
-- up to the next window, and a sum too large to be exact is above every limit anyway.
local function raw(key) return fieldsOf(key, 's', 'c') end

return raw(KEYS[1])
