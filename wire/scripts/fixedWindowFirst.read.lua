-- fixedWindowFirst.read
-- KEYS  1 key
-- ARGV  none
-- reply s and c, or nil twice
-- state hash: s start of the window, c count in it, each %.0f

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
local function raw(key) return redis.call('HMGET', key, 's', 'c') end

return raw(KEYS[1])
