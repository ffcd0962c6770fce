-- A record that the caller has decided on: the old one must not have changed since, and the new one
-- is kept for so long; -1 if there is none, and 0 if the old one stays. The two are the arguments
-- from `recordAt` on. What has changed has no answer.
local function readRecord(key) return redis.call('GET', key) end

local function swap(keepFor, record, _, admits, recordAt)
  if (record or '') ~= ARGV[recordAt] then return nil end
  if keepFor == 0 then return admits, 0, 0, 0, 0 end
  return admits, 0, 0, 0, 0, keepFor > 0 and ARGV[recordAt + 1], 0
end

local function writeRecord(key, keepFor, record) redis.call('SET', key, record, 'PX', keepFor) end
