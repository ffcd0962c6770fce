-- slidingWindow.check
-- KEYS  1 key
-- ARGV  1 now, 2 windowMs, 3 limit, 4 cost, 5 buckets
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: field tick % (buckets + 1), value "<tick>:<count>", each %.0f
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_INSTANT_MS, WHOLE, FOREIGN = 60000, 86400000, 9007199254740991, 70368744177664, '^%d+$', 'WRONGTYPE not the state of a slidingWindow'
local now, cost = ARGV[1] + 0, ARGV[4] + 0
local p = {windowMs = ARGV[2] + 0, limit = ARGV[3] + 0, buckets = ARGV[5] + 0}
local time = redis.call('TIME')
local serverNow = time[1] * 1000 + math.floor(time[2] / 1000)
local ahead = 0
if now == 0 then
  now = serverNow
elseif now > serverNow then
  ahead = now - serverNow
end
local key = KEYS[1]
local stored
do
  local ring = redis.call('HGETALL', key)
  local last, counts, newest = math.floor(MAX_INSTANT_MS / (p.windowMs / p.buckets)), {}, nil
  for i = 2, #ring, 2 do
    local tick, count = string.match(ring[i], '^(%d+):(%d+)$')
    if not (tick and string.find(ring[i - 1], WHOLE)) then error(FOREIGN, 0) end
    tick, count = tonumber(tick), tonumber(count)
    if tick > last or count > MAX_SAFE then error(FOREIGN, 0) end
    counts[tick] = count
    if not newest or tick > newest then newest = tick end
  end
  stored = newest and {counts = counts, newest = newest}
end
local check3_1, check3_2, check3_3, check3_4, check3_5, check3_6, check3_7
do
  local limit, w = p.limit, p.windowMs / p.buckets
  local tickAt1_1, tickAt1_2
  do
    local stored = stored
    local tick = math.floor(now / (p.windowMs / p.buckets))
    local counts
    if stored then
      counts = stored.counts
      if stored.newest > tick then tick = stored.newest end
    end
    tickAt1_1, tickAt1_2 = tick, counts or {}
  end
  local tick, counts = tickAt1_1, tickAt1_2
  local estimateAt2_1, estimateAt2_2, estimateAt2_3
  do
    local w, edge = p.windowMs / p.buckets, tick - p.buckets
    local full, oldest = 0, counts[edge] or 0
    for at, count in pairs(counts) do
      if at > edge then full = full + count end
    end
    local elapsed = now - tick * w
    if elapsed < 0 then elapsed = 0 end
    local weight = (w - elapsed) / w
    if weight < 0 then weight = 0 end
    estimateAt2_1, estimateAt2_2, estimateAt2_3 = full + oldest * weight, oldest, weight
  end
  local estimate, oldest, weight = estimateAt2_1, estimateAt2_2, estimateAt2_3
  local projected = estimate + cost
  local resetAt = math.ceil((tick + 1) * w + p.windowMs)
  local allowed, left, retry, state, ttl = 1, limit - projected, 0, nil, nil
  if projected <= limit then
    do
      local counts, tick, units = counts, tick, cost
      local changed = stored and stored.changed or {}
      local newest = stored and stored.newest > tick and stored.newest or tick
      counts[tick], changed[tick] = (counts[tick] or 0) + units, true
      state = {counts = counts, changed = changed, newest = newest}
    end
    ttl = math.max(1, resetAt - now)
  else
    local excess = projected - limit
    if oldest > 0 and excess <= oldest * weight then
      retry = math.ceil(excess * w / oldest)
    else
      retry = math.ceil((tick + 1) * w - now)
    end
    allowed, left, retry = 0, limit - estimate, math.max(1, retry)
  end
  check3_1, check3_2, check3_3, check3_4, check3_5, check3_6, check3_7 = allowed, limit, math.max(0, math.floor(left)), resetAt, retry, state, ttl
end
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl = check3_1, check3_2, check3_3, check3_4, check3_5, check3_6, check3_7
if allowed == 1 then
  local px
  do
    local margin = ttl
    if margin < MARGIN_MS then margin = MARGIN_MS end
    if margin > MAX_MARGIN_MS then margin = MAX_MARGIN_MS end
    px = ahead + ttl + margin
  end
  do
    if p.buckets > 5000 then
      for tick in pairs(state.counts) do
        if tick < state.newest - p.buckets then redis.call('HDEL', key, tick % (p.buckets + 1)) end
      end
    end
    for tick in pairs(state.changed) do
      local count = string.format('%.0f:%.0f', tick, state.counts[tick])
      redis.call('HSET', key, tick % (p.buckets + 1), count)
    end
    redis.call('PEXPIRE', key, px)
  end
end
return {allowed, limit, remaining, resetAt, retryAfterMs}
