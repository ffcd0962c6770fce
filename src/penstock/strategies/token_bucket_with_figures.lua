-- The token bucket, with figures: a hash of four fields, `t` tokens, `l` the instant they count for,
-- `c` the capacity and `r` the refill per ms that it was written with.
--
-- The functions below replace those of `token_bucket.lua` that read and write. A bucket of other
-- figures is converted when it is read.
local function raw(key)
  local stored = redis.call('HMGET', key, 't', 'l', 'c', 'r')
  local complete = stored[1] and stored[2] and stored[3] and stored[4]
  if not complete and redis.call('HLEN', key) > 0 then error(FOREIGN, 0) end
  return stored
end

-- Decide.
local function middle(one, other, third)
  return math.max(math.min(one, other), math.min(math.max(one, other), third))
end

local function adopt(p, tokens, at, now, capacity, rate)
  local ownRate = p.refillPerSec / 1000
  if capacity ~= p.capacity or rate ~= ownRate then
    if now > at and tokens + (now - at) * rate >= capacity then
      tokens = p.capacity
    else
      local isPaused = at > now and tokens < 1
      local used = capacity - math.min(math.max(tokens, 0), capacity)
      local kept = middle(used * ownRate / rate, used * p.capacity / capacity, used)
      if tokens < 0 then kept = math.max(kept, p.capacity - 1) - tokens * ownRate / rate end
      local lowest = math.max(p.capacity - 2 * MAX_SPAN_MS * ownRate, -MAX_SAFE)
      tokens = math.max(p.capacity - kept * (1 - 2 ^ -50), lowest)
      if isPaused then tokens = math.min(tokens, 1 - 2 ^ -53) end
    end
  end
  return {tokens = tokens, last = at}
end

local function read(key, p, now)
  local stored = raw(key)
  local state
  if stored[1] then
    local tokens = number(stored[1], SIGNED, MAX_SAFE)
    if tokens < -MAX_SAFE then error(FOREIGN, 0) end
    local last = number(stored[2], WHOLE, MAX_STORED_MS)
    local capacity = number(stored[3], WHOLE, MAX_SAFE)
    local rate = number(stored[4], REAL, MAX_SAFE)
    if capacity <= 0 or rate <= 0 then error(FOREIGN, 0) end
    local adopted = adopt(p, tokens, last, now, capacity, rate)
    state = adopted
  end
  return state
end

local function write(key, p, state, px)
  local tokens = string.format('%.17g', state.tokens)
  local rate = string.format('%.17g', p.refillPerSec / 1000)
  redis.call('HSET', key, 't', tokens, 'l', state.last, 'c', p.capacity, 'r', rate)
  redis.call('PEXPIRE', key, px)
end
