-- The token bucket: a hash of two fields, `t` tokens and `l` the instant they count for.
--
-- `t` is a double with all its digits; a bucket that was rounded on every visit would leak or gain.
-- A bucket that outlives its ttl has refilled by the same arithmetic, so it decides like a fresh
-- one.
local function raw(key) return fieldsOf(key, 't', 'l') end

-- Decide.
local function read(key)
  local stored = raw(key)
  local state
  if stored[1] then
    local tokens = number(stored[1], SIGNED, MAX_SAFE)
    if tokens < -MAX_SAFE then error(FOREIGN, 0) end
    local last = number(stored[2], WHOLE, MAX_STORED_MS)
    state = {tokens = tokens, last = last}
  end
  return state
end

local function level(p, stored, now)
  local tokens, at = p.capacity, now
  if stored then
    tokens, at = stored.tokens, stored.last
    if now > at then tokens, at = tokens + (now - at) * (p.refillPerSec / 1000), now end
    if tokens > p.capacity then tokens = p.capacity end
  end
  return tokens, at
end

local function check(p, stored, now, cost)
  local capacity, rate = p.capacity, p.refillPerSec / 1000
  local tokens, at = level(p, stored, now)
  local allowed, retry, state, ttl = 0, 0, nil, nil
  if tokens < cost then
    retry = math.min((at - now) + math.ceil((cost - tokens) / rate), MAX_SAFE)
  else
    allowed, tokens = 1, tokens - cost
    state, ttl = {tokens = tokens, last = at}, (at - now) + math.max(1, math.ceil(capacity / rate))
  end
  local resetAt = at + math.ceil((capacity - tokens) / rate)
  return allowed, capacity, math.max(0, math.floor(tokens)), resetAt, retry, state, ttl
end

local function write(key, p, state, px)
  redis.call('HSET', key, 't', string.format('%.17g', state.tokens), 'l', state.last)
  redis.call('PEXPIRE', key, px)
end

-- Give back.
-- Rounded down; the next double below a sum is found by rounding, since Lua has no other way to it.
local function sum(tokens, units)
  local total = tokens + units
  if total - units <= tokens then return total end
  return total > 0 and total * (1 - 2 ^ -53) or total + total * (3 * 2 ^ -54)
end

-- Until the bucket is full again; a debt takes longer than an empty bucket.
local function ttlOf(p, tokens, at, now)
  local rate = p.refillPerSec / 1000
  return (at - now) + math.max(1, math.ceil((p.capacity - math.min(tokens, 0)) / rate))
end

local function take(p, tokens, at, now, retry)
  local resetAt = at + math.ceil((p.capacity - tokens) / (p.refillPerSec / 1000))
  local state = {tokens = tokens, last = at}
  local ttl = ttlOf(p, tokens, at, now)
  return 1, p.capacity, math.max(0, math.floor(tokens)), resetAt, retry, state, ttl
end

local function lowest(p)
  return math.max(p.capacity - 2 * MAX_SPAN_MS * (p.refillPerSec / 1000), -MAX_SAFE)
end

local function refund(p, stored, now, cost, chargedAt)
  if not stored then return 1, 0, 0, 0, 0 end
  local tokens, at = level(p, stored, now)
  local owed = -tokens - (chargedAt - at) * (p.refillPerSec / 1000)
  if chargedAt > now and tokens < 0 and owed > 2 ^ -10 then return 1, 0, 0, 0, 0 end
  local most, room = p.capacity, p.capacity - tokens
  if at > now and tokens < 1 then most, room = 1 - 2 ^ -53, math.max(0, -tokens) end
  if tokens >= most then return 1, 0, 0, 0, 0 end
  local rate = p.refillPerSec / 1000
  local unpaid = (chargedAt - now + p.capacity / rate) * rate
  if unpaid <= 0 then return 1, 0, 0, 0, 0 end
  local back = math.min(cost, unpaid * (1 + 2 ^ -50))
  local units = math.max(0, math.min(cost, math.ceil(math.min(back, room) - 2 ^ -10)))
  tokens = math.min(most, sum(tokens, back))
  return 1, units, 0, 0, 0, {tokens = tokens, last = at}, ttlOf(p, tokens, at, now)
end

local function charge(p, stored, now, cost)
  local tokens, at = level(p, stored, now)
  local units = math.min(cost, math.max(0, math.floor(tokens + p.capacity)))
  return take(p, sum(tokens, -units), at, now, cost - units)
end

local function book(p, stored, now, cost, maxWaitMs)
  local rate = p.refillPerSec / 1000
  local tokens, at = level(p, stored, now)
  local left, delay = tokens - cost, 0
  if left < 0 then delay = math.min((at - now) + math.ceil(-left / rate), MAX_SAFE) end
  if delay > maxWaitMs or left < lowest(p) then
    local resetAt = at + math.ceil((p.capacity - tokens) / rate)
    return 0, p.capacity, math.max(0, math.floor(tokens)), resetAt, delay
  end
  return take(p, left, at, now, delay)
end

local function pause(p, stored, now, untilMs)
  local tokens, at = level(p, stored, now)
  if untilMs <= now or (tokens < 1 and at >= untilMs) then return 1, 0, 0, 0, 0 end
  tokens, at = level(p, stored, untilMs)
  -- The largest double below 1.
  tokens = math.min(tokens, 1 - 2 ^ -53)
  return 1, 0, 0, 0, 0, {tokens = tokens, last = at}, ttlOf(p, tokens, at, now)
end
