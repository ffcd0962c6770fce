-- slidingWindow.check
-- KEYS  1 key
-- ARGV  1 now, 2 windowMs, 3 limit, 4 cost, 5 buckets
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: field tick % (buckets + 1), value "<tick>:<count>", each %.0f
local now, windowMs, limit, cost, buckets = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

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

local function foreign() error('WRONGTYPE not the state of a slidingWindow', 0) end

local w = windowMs / buckets

local ticks, counts = {}, {}
local tick, last = math.floor(now / w), math.floor(70368744177664 / w)
local ring = redis.call('HGETALL', KEYS[1])
for i = 2, #ring, 2 do
  local t, count = string.match(ring[i], '^(%d+):(%d+)$')
  if not (t and string.find(ring[i - 1], '^%d+$')) then foreign() end
  t, count = tonumber(t), tonumber(count)
  if t > last or count > 9007199254740991 then foreign() end
  ticks[#ticks + 1], counts[#counts + 1] = t, count
  if t > tick then tick = t end
end

local edge = tick - buckets
local full, oldest, current = 0, 0, 0
for i = 1, #ticks do
  if ticks[i] == edge then
    oldest = counts[i]
  elseif ticks[i] > edge then
    full = full + counts[i]
    if ticks[i] == tick then current = counts[i] end
  end
end

local elapsed = math.max(0, now - tick * w)
local weight = math.min(1, math.max(0, (w - elapsed) / w))
local estimate = full + oldest * weight
local projected = estimate + cost
local resetAt = math.ceil((tick + 1) * w + windowMs)

if projected > limit then
  local excess = projected - limit
  local retry
  if oldest > 0 and excess <= oldest * weight then
    retry = math.ceil(excess * w / oldest)
  else
    retry = math.ceil((tick + 1) * w - now)
  end
  return {0, limit, math.max(0, math.floor(limit - estimate)), resetAt, math.max(1, retry)}
end

local field = string.format('%.0f', tick % (buckets + 1))
redis.call('HSET', KEYS[1], field, string.format('%.0f:%.0f', tick, current + cost))
redis.call('PEXPIRE', KEYS[1], keepMs(math.max(1, resetAt - now)))
return {1, limit, math.max(0, math.floor(limit - projected)), resetAt, 0}
