-- gcra.check
-- KEYS  1 key
-- ARGV  1 now, 2 periodMs, 3 limit, 4 burst, 5 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state string: the TAT, %.17g
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_STORED_MS, FOREIGN = 60000, 86400000, 9007199254740991, 140737488355328, 'WRONGTYPE not the state of a gcra'
local now, cost = ARGV[1] + 0, ARGV[5] + 0
local p = {periodMs = ARGV[2] + 0, limit = ARGV[3] + 0, burst = ARGV[4] + 0}
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
  local tat = redis.call('GET', key)
  if tat then
    local number2_1
    do
      local text, form, most = tat, '^%d+%.?%d*$', MAX_STORED_MS
      local value = string.find(text, form) and text + 0
      if not value or value > most then error(FOREIGN, 0) end
      number2_1 = value
    end
    tat = number2_1
  end
  stored = tat
end
local check1_1, check1_2, check1_3, check1_4, check1_5, check1_6, check1_7
do
  local interval = math.floor(p.periodMs * 2048 / p.limit) / 2048
  local tau = interval * p.burst
  local tat = stored and stored > now and stored or now
  local new = tat + interval * cost
  local allowAt = new - tau
  local allowed, retry, ttl = 1, 0, nil
  if now < allowAt then
    allowed, retry, new = 0, math.min(math.ceil(allowAt - now), MAX_SAFE), tat
  else
    if new * 2048 % 1 == 0.5 then new = new + 1 / 4096 end
    ttl = math.max(1, math.ceil(new - now))
  end
  local remaining = math.max(0, math.floor((tau - (new - now)) / interval))
  check1_1, check1_2, check1_3, check1_4, check1_5, check1_6, check1_7 = allowed, p.burst, remaining, math.ceil(new), retry, new, ttl
end
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl = check1_1, check1_2, check1_3, check1_4, check1_5, check1_6, check1_7
if allowed == 1 then
  local px
  do
    local margin = ttl
    if margin < MARGIN_MS then margin = MARGIN_MS end
    if margin > MAX_MARGIN_MS then margin = MAX_MARGIN_MS end
    px = ahead + ttl + margin
  end
  do
    local tat = state
    redis.call('SET', key, string.format('%.17g', tat), 'PX', px)
  end
end
return {allowed, limit, remaining, resetAt, retryAfterMs}
