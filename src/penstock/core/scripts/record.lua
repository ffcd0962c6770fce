-- A record that the caller has decided on: the old one must not have changed since, and the new one
-- is kept for so long; -1 if there is none, and 0 if the old one stays. The two are the arguments
-- from `recordAt` on. What has changed has no answer.
local function readRecord(key) return redis.call('GET', key) end

local function swapRecord(keepFor, record, now, admits, recordAt)
  local answer, text, ttl = admits, nil, nil
  if (record or '') ~= ARGV[recordAt] then
    answer = nil
  elseif keepFor ~= 0 then
    text, ttl = keepFor > 0 and ARGV[recordAt + 1], 0
  end
  return answer, 0, 0, 0, 0, text, ttl
end

local function writeRecord(key, keepFor, record, px) redis.call('SET', key, record, 'PX', keepFor) end
