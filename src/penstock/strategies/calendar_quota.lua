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
  if not complete and redis.call('HLEN', key) > 0 then error(FOREIGN, 0) end
  return stored
end

-- Decide.
local function read(key)
  local stored = raw(key)
  local state
  if stored[1] then
    local start = number(stored[1], WHOLE, MAX_STORED_MS)
    local finish = number(stored[2], WHOLE, MAX_STORED_MS)
    local count = number(stored[3], WHOLE, MAX_SAFE)
    if start >= finish then error(FOREIGN, 0) end
    state = {start = start, finish = finish, count = count}
  end
  return state
end

local function periodAt(p, stored, now)
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
  return start, finish, count
end

local function check(p, stored, now, cost)
  local limit = p.limit
  local start, finish, count = periodAt(p, stored, now)
  local allowed, retry, state, ttl = 0, finish - now, nil, nil
  if count + cost <= limit then
    count = count + cost
    allowed, retry, ttl = 1, 0, finish - now
    state = {start = start, finish = finish, count = count}
  end
  return allowed, limit, math.max(0, limit - count), finish, retry, state, ttl
end

local function write(key, p, state, px)
  redis.call('HSET', key, 's', state.start, 'e', state.finish, 'c', state.count)
  redis.call('PEXPIRE', key, px)
end

-- Give back.
local function refund(p, stored, now, cost, chargedAt)
  local start, finish, count = periodAt(p, stored, now)
  local units = 0
  if start <= chargedAt and chargedAt < finish then units = math.min(cost, count) end
  if units == 0 then return 1, 0, 0, 0, 0 end
  local state = {start = start, finish = finish, count = count - units}
  return 1, units, 0, 0, 0, state, finish - now
end

local function charge(p, stored, now, cost)
  local start, finish, count = periodAt(p, stored, now)
  local units = math.min(cost, math.max(0, math.min(2 * p.limit, MAX_SAFE) - count))
  count = count + units
  local state = {start = start, finish = finish, count = count}
  return 1, p.limit, math.max(0, p.limit - count), finish, cost - units, state, finish - now
end

local function pause(p, stored, now, untilMs)
  local start, finish, count = periodAt(p, stored, now)
  if untilMs <= now or (finish >= untilMs and count >= 2 ^ 52) then return 1, 0, 0, 0, 0 end
  if finish < untilMs then
    -- A spent period that is still to come stands until it is over.
    start, finish = untilMs - 1, untilMs
  end
  local state = {start = start, finish = finish, count = MAX_SAFE}
  return 1, 0, 0, 0, 0, state, finish - now
end
