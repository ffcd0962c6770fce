-- gcra.check
-- KEYS  1 key
-- ARGV  1 now, 2 periodMs, 3 limit, 4 burst, 5 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state string: the TAT, %.17g
local now, periodMs, limit, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

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

local function foreign() error('WRONGTYPE not the state of a gcra', 0) end

local function number(text, form, most)
  local value = string.find(text, form) and tonumber(text)
  if not value or value > most then foreign() end
  return value
end

local interval = math.floor(periodMs * 2048 / limit) / 2048
local tau = interval * burst

local tat = now
local stored = redis.call('GET', KEYS[1])
if stored then tat = math.max(number(stored, '^%d+%.?%d*$', 140737488355328), now) end

local new = tat + interval * cost
local allowAt = new - tau
if now < allowAt then
  local remaining = math.max(0, math.floor((tau - (tat - now)) / interval))
  local retry = math.min(math.ceil(allowAt - now), 9007199254740991)
  return {0, burst, remaining, math.ceil(tat), retry}
end

local remaining = math.max(0, math.floor((tau - (new - now)) / interval))
local ttl = math.max(1, math.ceil(new - now))
redis.call('SET', KEYS[1], string.format('%.17g', new), 'PX', keepMs(ttl))
return {1, burst, remaining, math.ceil(new), 0}
