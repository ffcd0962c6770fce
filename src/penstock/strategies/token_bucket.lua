-- The token bucket: a hash of two fields, `t` tokens and `l` the instant they count for.
--
-- `t` is a double with all its digits; a bucket that was rounded on every visit would leak or gain.
-- A bucket that outlives its ttl has refilled by the same arithmetic, so it decides like a fresh
-- one.
local function raw(key) return fieldsOf(key, 't', 'l') end

-- Decide.
local function read(key)
  local stored = raw(key)
  if stored[1] then
    local last = number(stored[2], WHOLE, MAX_STORED_MS)
    return {tokens = number(stored[1], REAL, MAX_SAFE), last = last}
  end
end

local function check(p, stored, now, cost)
  local capacity, rate = p.capacity, p.refillPerSec / 1000
  local tokens, at = capacity, now
  if stored then
    if now <= stored.last then
      tokens, at = min(capacity, stored.tokens), stored.last
    else
      tokens = min(capacity, stored.tokens + (now - stored.last) * rate)
    end
  end
  if tokens < cost then
    local resetAt = at + ceil((capacity - tokens) / rate)
    local retry = min((at - now) + ceil((cost - tokens) / rate), MAX_SAFE)
    return 0, capacity, floor(tokens), resetAt, retry
  end
  tokens = tokens - cost
  local resetAt = at + ceil((capacity - tokens) / rate)
  local ttl = (at - now) + max(1, ceil(capacity / rate))
  return 1, capacity, floor(tokens), resetAt, 0, {tokens = tokens, last = at}, ttl
end

local function write(key, p, state, px)
  call('HSET', key, 't', format('%.17g', state.tokens), 'l', format('%.0f', state.last))
  call('PEXPIRE', key, px)
end
