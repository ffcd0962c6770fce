-- The token budget: a hash of two fields, `s` the window's start and `c` the tokens served in it.
local function raw(key) return fieldsOf(key, 's', 'c') end

-- Decide.
local function read(key)
  local stored = raw(key)
  local state
  if stored[1] then
    local start = number(stored[1], WHOLE, MAX_STORED_MS)
    local served = number(stored[2], WHOLE, MAX_SAFE)
    state = {start = start, served = served}
  end
  return state
end

local function windowAt(p, stored, now)
  local start, served = math.floor(now / p.windowMs) * p.windowMs, 0
  if stored and stored.start >= start then start, served = stored.start, stored.served end
  return start, served
end

local function check(p, stored, now, cost)
  local budget = p.budget
  local start, served = windowAt(p, stored, now)
  local resetAt = start + p.windowMs
  local allowed, retry, state, ttl = 0, resetAt - now, nil, nil
  if served < budget then
    served = math.min(served + cost, MAX_SAFE)
    allowed, retry, state, ttl = 1, 0, {start = start, served = served}, resetAt - now
  end
  return allowed, budget, math.max(0, budget - served), resetAt, retry, state, ttl
end

local function write(key, p, state, px)
  redis.call('HSET', key, 's', state.start, 'c', state.served)
  redis.call('PEXPIRE', key, px)
end

-- Give back.
-- A debit has been used and never comes back. An estimate is only looked at: does it fit?
local function look(p, stored, now, cost)
  local start, served = windowAt(p, stored, now)
  local resetAt, remaining = start + p.windowMs, math.max(0, p.budget - served)
  if cost <= remaining then return 1, p.budget, remaining, resetAt, 0 end
  return 0, p.budget, remaining, resetAt, resetAt - now
end
