-- The fixed window: a hash of two fields, `s` the window's start and `c` its count.
--
-- Both anchors keep the same state and differ in one line, the window that `now` falls into. They
-- are two scripts, because a client that knows only the epoch's has no argument for the other.
--
-- Every admission sets the expiry, not only the one that opens a window: the next caller may have
-- been given a longer window, or a clock that is behind.
--
-- Whole numbers up to 2^53 divide and multiply exactly here: floor(now / windowMs) is never rounded
-- up to the next window, and a sum too large to be exact is above every limit anyway.
local function raw(key) return fieldsOf(key, 's', 'c') end

-- Decide.
local function read(key)
  local stored = raw(key)
  local state
  if stored[1] then
    local start = number(stored[1], WHOLE, MAX_STORED_MS)
    local count = number(stored[2], WHOLE, MAX_SAFE)
    state = {start = start, count = count}
  end
  return state
end

local function windowAt(p, stored, now)
  local start, count = math.floor(now / p.windowMs) * p.windowMs, 0
  if p.anchor == 'first' then
    start = now
    if stored and now - stored.start < p.windowMs then start = stored.start end
  end
  if stored and stored.start >= start then start, count = stored.start, stored.count end
  return start, count
end

local function check(p, stored, now, cost)
  local limit, windowMs = p.limit, p.windowMs
  local start, count = windowAt(p, stored, now)
  local resetAt = start + windowMs
  local allowed, retry, state, ttl = 0, resetAt - now, nil, nil
  if count + cost <= limit then
    count = count + cost
    allowed, retry, state, ttl = 1, 0, {start = start, count = count}, resetAt - now
  end
  return allowed, limit, math.max(0, limit - count), resetAt, retry, state, ttl
end

local function write(key, p, state, px)
  redis.call('HSET', key, 's', state.start, 'c', state.count)
  redis.call('PEXPIRE', key, px)
end

-- Give back.
local function refund(p, stored, now, cost, chargedAt)
  local start, count = windowAt(p, stored, now)
  local units = 0
  if start <= chargedAt and chargedAt < start + p.windowMs then units = math.min(cost, count) end
  if units == 0 then return 1, 0, 0, 0, 0 end
  if units == count and p.anchor == 'first' and start <= now then
    -- The request that opened the window has not been made.
    return 1, units, 0, 0, 0, nil, 0
  end
  return 1, units, 0, 0, 0, {start = start, count = count - units}, start + p.windowMs - now
end

local function charge(p, stored, now, cost)
  local start, count = windowAt(p, stored, now)
  local units = math.min(cost, math.max(0, math.min(2 * p.limit, MAX_SAFE) - count))
  count = count + units
  local resetAt = start + p.windowMs
  local state = {start = start, count = count}
  return 1, p.limit, math.max(0, p.limit - count), resetAt, cost - units, state, resetAt - now
end

local function pause(p, stored, now, untilMs)
  local start, count = windowAt(p, stored, now)
  local finish = start + p.windowMs
  if untilMs <= now or (finish >= untilMs and count >= 2 ^ 52) then return 1, 0, 0, 0, 0 end
  if finish < untilMs then
    start = untilMs - p.windowMs
    if p.anchor ~= 'first' then start = math.floor((untilMs - 1) / p.windowMs) * p.windowMs end
    finish = start + p.windowMs
  end
  return 1, 0, 0, 0, 0, {start = start, count = MAX_SAFE}, finish - now
end
