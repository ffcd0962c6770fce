-- fixedWindow.check
-- KEYS  1 key
-- ARGV  1 now, 2 limit, 3 windowMs, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: s start of the window, c count in it, each %.0f
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_STORED_MS, WHOLE, FOREIGN = 60000, 86400000, 9007199254740991, 140737488355328, '^%d+$', 'WRONGTYPE not the state of a fixedWindow'
local now, cost = ARGV[1] + 0, ARGV[4] + 0
local p = {limit = ARGV[2] + 0, windowMs = ARGV[3] + 0, anchor = 'epoch'}
local time = redis.call('TIME')
local serverNow = time[1] * 1000 + math.floor(time[2] / 1000)
local ahead = 0
if now == 0 then
  now = serverNow
elseif now > serverNow then
  ahead = now - serverNow
end
local key = KEYS[1]
local read4_1
do
  local fieldsOf3_1
  do
    local key, first, second = key, 's', 'c'
    local stored = redis.call('HMGET', key, first, second)
    if not (stored[1] and stored[2]) and redis.call('HLEN', key) > 0 then error(FOREIGN, 0) end
    fieldsOf3_1 = stored
  end
  local stored = fieldsOf3_1
  local state
  if stored[1] then
    local start
    do
      local text, form, most = stored[1], WHOLE, MAX_STORED_MS
      local value = string.find(text, form) and text + 0
      if not value or value > most then error(FOREIGN, 0) end
      start = value
    end
    local count
    do
      local text, form, most = stored[2], WHOLE, MAX_SAFE
      local value = string.find(text, form) and text + 0
      if not value or value > most then error(FOREIGN, 0) end
      count = value
    end
    state = {start = start, count = count}
  end
  read4_1 = state
end
local stored = read4_1
local check2_1, check2_2, check2_3, check2_4, check2_5, check2_6, check2_7
do
  local cost = cost
  local limit, windowMs = p.limit, p.windowMs
  local windowAt1_1, windowAt1_2
  do
    local p, stored, now = p, stored, now
    local start, count = math.floor(now / p.windowMs) * p.windowMs, 0
    if p.anchor == 'first' then
      start = now
      if stored and now - stored.start < p.windowMs then start = stored.start end
    end
    if stored and stored.start >= start then start, count = stored.start, stored.count end
    windowAt1_1, windowAt1_2 = start, count
  end
  local start, count = windowAt1_1, windowAt1_2
  local resetAt = start + windowMs
  local allowed, retry, state, ttl = 0, resetAt - now, nil, nil
  if count + cost <= limit then
    count = count + cost
    allowed, retry, state, ttl = 1, 0, {start = start, count = count}, resetAt - now
  end
  check2_1, check2_2, check2_3, check2_4, check2_5, check2_6, check2_7 = allowed, limit, math.max(0, limit - count), resetAt, retry, state, ttl
end
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl = check2_1, check2_2, check2_3, check2_4, check2_5, check2_6, check2_7
if allowed == 1 then
  local px
  do
    local margin = ttl
    if margin < MARGIN_MS then margin = MARGIN_MS end
    if margin > MAX_MARGIN_MS then margin = MAX_MARGIN_MS end
    px = ahead + ttl + margin
  end
  do
    redis.call('HSET', key, 's', state.start, 'c', state.count)
    redis.call('PEXPIRE', key, px)
  end
end
return {allowed, limit, remaining, resetAt, retryAfterMs}
