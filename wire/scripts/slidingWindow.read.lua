-- slidingWindow.read
-- KEYS  1 key
-- ARGV  none
-- reply field, "<tick>:<count>", field, "<tick>:<count>", ...
-- state hash: field tick % (buckets + 1), value "<tick>:<count>", each %.0f

-- The sliding window: a hash used as a ring.
--
-- Tick t lives in field t % (buckets + 1) as "<t>:<count>". The window spans buckets + 1 ticks, so
-- the field of the current tick is either its own or holds one that has left the window, and is
-- simply overwritten. What is stale elsewhere in the ring is told by its tick and skipped.
--
-- The ring is read whole. It has at most buckets + 1 fields and often far fewer, and naming them all
-- in one command would overflow Lua's stack for rings of some thousands.
local function raw(key) return redis.call('HGETALL', key) end

return raw(KEYS[1])
