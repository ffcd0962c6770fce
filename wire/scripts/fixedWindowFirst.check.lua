-- fixedWindowFirst.check
-- KEYS  1 key
-- ARGV  1 now, 2 limit, 3 windowMs, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: s start of the window, c count in it, each %.0f
local now, limit, windowMs, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function serverMs()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local ownClock = now == 0
if ownClock then now = serverMs() end

local function keepMs(ttl)
  local ahead = 0
  if not ownClock then ahead = math.max(0, now - serverMs()) end
  return string.format('%.0f', ahead + ttl + math.min(math.max(ttl, 60000), 86400000))
end

local function foreign() error('WRONGTYPE not the state of a fixedWindow', 0) end

local function number(text, form, most)
  local value = string.find(text, form) and tonumber(text)
  if not value or value > most then foreign() end
  return value
end

local stored = redis.call('HMGET', KEYS[1], 's', 'c')
local isStored = stored[1] and stored[2]
if not isStored and redis.call('HLEN', KEYS[1]) > 0 then foreign() end
local storedStart, storedCount
if isStored then
  storedStart = number(stored[1], '^%d+$', 140737488355328)
  storedCount = number(stored[2], '^%d+$', 9007199254740991)
end
local start, count = now, 0
if storedStart and now - storedStart < windowMs then start = storedStart end
if storedStart and storedStart >= start then start, count = storedStart, storedCount end
local resetAt = start + windowMs

if count + cost > limit then
  return {0, limit, math.max(0, limit - count), resetAt, resetAt - now}
end

count = count + cost
redis.call('HSET', KEYS[1], 's', string.format('%.0f', start), 'c', string.format('%.0f', count))
redis.call('PEXPIRE', KEYS[1], keepMs(resetAt - now))
return {1, limit, limit - count, resetAt, 0}
