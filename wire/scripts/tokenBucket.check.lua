-- tokenBucket.check
-- KEYS  1 key
-- ARGV  1 now, 2 capacity, 3 refillPerSec, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: t tokens, %.17g; l the last ms credited, %.0f
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_STORED_MS, WHOLE, SIGNED, FOREIGN = 60000, 86400000, 9007199254740991, 140737488355328, '^%d+$', '^-?%d+%.?%d*e?-?%d*$', 'WRONGTYPE not the state of a tokenBucket'
local now, cost = ARGV[1] + 0, ARGV[4] + 0
local p = {capacity = ARGV[2] + 0, refillPerSec = ARGV[3] + 0}
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
    local key, first, second = key, 't', 'l'
    local stored = redis.call('HMGET', key, first, second)
    if not (stored[1] and stored[2]) and redis.call('HLEN', key) > 0 then error(FOREIGN, 0) end
    fieldsOf3_1 = stored
  end
  local stored = fieldsOf3_1
  local state
  if stored[1] then
    local tokens
    do
      local text, form, most = stored[1], SIGNED, MAX_SAFE
      local value = string.find(text, form) and text + 0
      if not value or value > most then error(FOREIGN, 0) end
      tokens = value
    end
    if tokens < -MAX_SAFE then error(FOREIGN, 0) end
    local last
    do
      local text, form, most = stored[2], WHOLE, MAX_STORED_MS
      local value = string.find(text, form) and text + 0
      if not value or value > most then error(FOREIGN, 0) end
      last = value
    end
    state = {tokens = tokens, last = last}
  end
  read4_1 = state
end
local stored = read4_1
local check2_1, check2_2, check2_3, check2_4, check2_5, check2_6, check2_7
do
  local capacity, rate = p.capacity, p.refillPerSec / 1000
  local level1_1, level1_2
  do
    local p, now = p, now
    local tokens, at = p.capacity, now
    if stored then
      tokens, at = stored.tokens, stored.last
      if now > at then tokens, at = tokens + (now - at) * (p.refillPerSec / 1000), now end
      if tokens > p.capacity then tokens = p.capacity end
    end
    level1_1, level1_2 = tokens, at
  end
  local tokens, at = level1_1, level1_2
  local allowed, retry, state, ttl = 0, 0, nil, nil
  if tokens < cost then
    retry = math.min((at - now) + math.ceil((cost - tokens) / rate), MAX_SAFE)
  else
    allowed, tokens = 1, tokens - cost
    state, ttl = {tokens = tokens, last = at}, (at - now) + math.max(1, math.ceil(capacity / rate))
  end
  local resetAt = at + math.ceil((capacity - tokens) / rate)
  check2_1, check2_2, check2_3, check2_4, check2_5, check2_6, check2_7 = allowed, capacity, math.max(0, math.floor(tokens)), resetAt, retry, state, ttl
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
    redis.call('HSET', key, 't', string.format('%.17g', state.tokens), 'l', state.last)
    redis.call('PEXPIRE', key, px)
  end
end
return {allowed, limit, remaining, resetAt, retryAfterMs}
