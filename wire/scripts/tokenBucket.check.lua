-- tokenBucket.check
-- KEYS  1 key
-- ARGV  1 now, 2 capacity, 3 refillPerSec, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: t tokens, %.17g; l the last ms credited, %.0f
local now, capacity, refillPerSec, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

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

local function foreign() error('WRONGTYPE not the state of a tokenBucket', 0) end

local function number(text, form, most)
  local value = string.find(text, form) and tonumber(text)
  if not value or value > most then foreign() end
  return value
end

local stored = redis.call('HMGET', KEYS[1], 't', 'l')
local isStored = stored[1] and stored[2]
if not isStored and redis.call('HLEN', KEYS[1]) > 0 then foreign() end
local rate = refillPerSec / 1000

local tokens, at = capacity, now
if isStored then
  local last = number(stored[2], '^%d+$', 140737488355328)
  tokens = number(stored[1], '^%d+%.?%d*e?-?%d*$', 9007199254740991)
  if now <= last then
    tokens, at = math.min(capacity, tokens), last
  else
    tokens = math.min(capacity, tokens + (now - last) * rate)
  end
end

if tokens < cost then
  local resetAt = at + math.ceil((capacity - tokens) / rate)
  local retry = math.min((at - now) + math.ceil((cost - tokens) / rate), 9007199254740991)
  return {0, capacity, math.floor(tokens), resetAt, retry}
end

tokens = tokens - cost
local ttl = (at - now) + math.max(1, math.ceil(capacity / rate))
redis.call('HSET', KEYS[1], 't', string.format('%.17g', tokens), 'l', string.format('%.0f', at))
redis.call('PEXPIRE', KEYS[1], keepMs(ttl))
return {1, capacity, math.floor(tokens), at + math.ceil((capacity - tokens) / rate), 0}
