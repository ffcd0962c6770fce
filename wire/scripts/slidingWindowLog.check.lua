-- slidingWindowLog.check
-- KEYS  1 key
-- ARGV  1 now, 2 windowMs, 3 limit, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state sorted set: one member per accepted unit, score its ms
local now, windowMs, limit, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

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

local function foreign() error('WRONGTYPE not the state of a slidingWindowLog', 0) end

local function number(text, form, most)
  local value = string.find(text, form) and tonumber(text)
  if not value or value > most then foreign() end
  return value
end

local function stampAt(rank)
  local place = string.format('%.0f', rank)
  return number(redis.call('ZRANGE', KEYS[1], place, place, 'WITHSCORES')[2], '^%d+$', 140737488355328)
end

local edge = now - windowMs
local gone, count, oldest = 0, redis.call('ZCARD', KEYS[1]), now
if count > 0 then
  oldest = stampAt(0)
  if oldest <= edge then
    gone = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', edge))
    count, oldest = count - gone, now
    if count > 0 then oldest = stampAt(gone) end
  end
end
local resetAt = math.ceil(oldest + windowMs)

if count + cost > limit then
  local retry = windowMs
  if count > 0 then
    local k = math.min(math.max(count + cost - limit, 1), count)
    local stamp = stampAt(gone + k - 1)
    retry = math.max(1, math.ceil(stamp + windowMs - now))
  end
  return {0, limit, math.max(0, limit - count), resetAt, retry}
end

local newest = -1
if count > 0 then newest = stampAt(-1) end
if gone > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', edge))
end

local stamp, n = math.max(now, newest), 0
local score = string.format('%.0f', stamp)
if newest >= now then n = redis.call('ZCOUNT', KEYS[1], score, score) end
local missing = cost
while missing > 0 do
  local chunk = {}
  for i = 1, math.min(missing, 500) do
    chunk[2 * i - 1] = score
    chunk[2 * i] = string.format('u%.0f.%.0f', stamp, n)
    n = n + 1
  end
  missing = missing - redis.call('ZADD', KEYS[1], 'NX', unpack(chunk))
end
redis.call('PEXPIRE', KEYS[1], keepMs(stamp - now + windowMs))
return {1, limit, limit - count - cost, resetAt, 0}
