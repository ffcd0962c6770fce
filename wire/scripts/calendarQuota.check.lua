-- calendarQuota.check
-- KEYS  1 key
-- ARGV  1 now, 2 limit, 3 before, 4 start, 5 finish, 6 after, 7 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: s start of the period, e its end, c count in it, each %.0f

local FOREIGN = 'WRONGTYPE not the state of a calendarQuota'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

local now, cost = ARGV[1] + 0, ARGV[7] + 0
local p = {limit = ARGV[2] + 0, before = ARGV[3] + 0, start = ARGV[4] + 0, finish = ARGV[5] + 0, after = ARGV[6] + 0}

-- What every strategy's file may use, beside what Lua and Redis have. Those are called by their own
-- names: a function that uses a local of the script costs a server more than four look-ups.

-- Raised as text, which servers before Redis 7 can report too.
local function foreign() error(FOREIGN, 0) end

-- A number from the text of a state: of this form, and no larger than `most`.
local function number(text, form, most)
  local value = string.find(text, form) and text + 0
  if not value or value > most then foreign() end
  return value
end

-- The two fields that a hash consists of, or false twice where there is no hash.
local function fieldsOf(key, first, second)
  local stored = redis.call('HMGET', key, first, second)
  if not (stored[1] and stored[2]) and redis.call('HLEN', key) > 0 then foreign() end
  return stored
end

local WHOLE, REAL, SIGNED = '^%d+$', '^%d+%.?%d*e?-?%d*$', '^-?%d+%.?%d*e?-?%d*$'

-- The server's clock is read once, so that all keys of a call are decided at one instant.
local time = redis.call('TIME')
local serverNow = time[1] * 1000 + math.floor(time[2] / 1000)
if now == 0 then now = serverNow end

-- For how long a key is kept whose state matters for `ttl`; longer if the caller is ahead of the
-- server. A whole number, which servers turn into text with all its digits.
local ahead = math.max(0, now - serverNow)
local function keepMs(ttl)
  local margin = ttl
  if margin < MARGIN_MS then margin = MARGIN_MS end
  if margin > MAX_MARGIN_MS then margin = MAX_MARGIN_MS end
  return ahead + ttl + margin
end

-- The calendar quota: a hash of three fields, `s` the period's start, `e` its end, `c` its count.
--
-- There is no calendar here. The caller sends where the period that it sees starts and ends, and
-- where the one before it starts and the one after it ends; which of the three is the present one
-- is for the clock that decides. One that is outside all of them is an error, not a guess.
--
-- A stored period that starts no earlier and is not over stands, with the end that it was given:
-- after a jump back it may be none of the three.
local function raw(key)
  local stored = redis.call('HMGET', key, 's', 'e', 'c')
  local complete = stored[1] and stored[2] and stored[3]
  if not complete and redis.call('HLEN', key) > 0 then foreign() end
  return stored
end

-- Decide.
local function read(key)
  local stored = raw(key)
  if stored[1] then
    local start = number(stored[1], WHOLE, MAX_STORED_MS)
    local finish = number(stored[2], WHOLE, MAX_STORED_MS)
    if start >= finish then foreign() end
    return {start = start, finish = finish, count = number(stored[3], WHOLE, MAX_SAFE)}
  end
end

local function periodAt(p, stored, now)
  if now < p.before or now >= p.after then
    error(string.format('OTHERPERIOD the clock that decides shows %.0f', now), 0)
  end
  local start, finish = p.start, p.finish
  if now < start then
    start, finish = p.before, p.start
  elseif now >= finish then
    start, finish = p.finish, p.after
  end
  if stored and stored.start >= start and now < stored.finish then
    return stored.start, stored.finish, stored.count
  end
  return start, finish, 0
end

local function check(p, stored, now, cost)
  local limit = p.limit
  local start, finish, count = periodAt(p, stored, now)
  if count + cost > limit then
    return 0, limit, math.max(0, limit - count), finish, finish - now
  end
  count = count + cost
  local state = {start = start, finish = finish, count = count}
  return 1, limit, limit - count, finish, 0, state, finish - now
end

local function write(key, p, state, px)
  redis.call('HSET', key, 's', state.start, 'e', state.finish, 'c', state.count)
  redis.call('PEXPIRE', key, px)
end


local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  check(p, read(key, p, now), now, cost)
if allowed == 1 then write(key, p, state, keepMs(ttl)) end
return {allowed, limit, remaining, resetAt, retryAfterMs}
