-- calendarQuota.check
-- KEYS  1 key
-- ARGV  1 now, 2 limit, 3 before, 4 start, 5 finish, 6 after, 7 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: s start of the period, e its end, c count in it, each %.0f
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_STORED_MS, WHOLE, FOREIGN = 60000, 86400000, 9007199254740991, 140737488355328, '^%d+$', 'WRONGTYPE not the state of a calendarQuota'
local now, cost = ARGV[1] + 0, ARGV[7] + 0
local p = {limit = ARGV[2] + 0, before = ARGV[3] + 0, start = ARGV[4] + 0, finish = ARGV[5] + 0, after = ARGV[6] + 0}
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
  local raw3_1
  do
    local stored = redis.call('HMGET', key, 's', 'e', 'c')
    local complete = stored[1] and stored[2] and stored[3]
    if not complete and redis.call('HLEN', key) > 0 then error(FOREIGN, 0) end
    raw3_1 = stored
  end
  local stored = raw3_1
  local state
  if stored[1] then
    local start
    do
      local text, form, most = stored[1], WHOLE, MAX_STORED_MS
      local value = string.find(text, form) and text + 0
      if not value or value > most then error(FOREIGN, 0) end
      start = value
    end
    local finish
    do
      local text, form, most = stored[2], WHOLE, MAX_STORED_MS
      local value = string.find(text, form) and text + 0
      if not value or value > most then error(FOREIGN, 0) end
      finish = value
    end
    local count
    do
      local text, form, most = stored[3], WHOLE, MAX_SAFE
      local value = string.find(text, form) and text + 0
      if not value or value > most then error(FOREIGN, 0) end
      count = value
    end
    if start >= finish then error(FOREIGN, 0) end
    state = {start = start, finish = finish, count = count}
  end
  read4_1 = state
end
local stored = read4_1
local check2_1, check2_2, check2_3, check2_4, check2_5, check2_6, check2_7
do
  local cost = cost
  local limit = p.limit
  local periodAt1_1, periodAt1_2, periodAt1_3
  do
    local p, stored, now = p, stored, now
    if now < p.before or now >= p.after then
      error(string.format('OTHERPERIOD the clock that decides shows %.0f', now), 0)
    end
    local start, finish, count = p.start, p.finish, 0
    if now < start then
      start, finish = p.before, p.start
    elseif now >= finish then
      start, finish = p.finish, p.after
    end
    if stored and stored.start >= start and now < stored.finish then
      start, finish, count = stored.start, stored.finish, stored.count
    end
    periodAt1_1, periodAt1_2, periodAt1_3 = start, finish, count
  end
  local start, finish, count = periodAt1_1, periodAt1_2, periodAt1_3
  local allowed, retry, state, ttl = 0, finish - now, nil, nil
  if count + cost <= limit then
    count = count + cost
    allowed, retry, ttl = 1, 0, finish - now
    state = {start = start, finish = finish, count = count}
  end
  check2_1, check2_2, check2_3, check2_4, check2_5, check2_6, check2_7 = allowed, limit, math.max(0, limit - count), finish, retry, state, ttl
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
    redis.call('HSET', key, 's', state.start, 'e', state.finish, 'c', state.count)
    redis.call('PEXPIRE', key, px)
  end
end
return {allowed, limit, remaining, resetAt, retryAfterMs}
