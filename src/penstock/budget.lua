-- The token budget: a hash of two fields, `s` the window's start and `c` the tokens served in it.
local function raw(key) return fieldsOf(key, 's', 'c') end

-- Decide.
local function read(key)
  local stored = raw(key)
  if stored[1] then
    local start = number(stored[1], WHOLE, MAX_STORED_MS)
    return {start = start, served = number(stored[2], WHOLE, MAX_SAFE)}
  end
end

local function check(p, stored, now, cost)
  local budget, windowMs = p.budget, p.windowMs
  local start, served = floor(now / windowMs) * windowMs, 0
  if stored and stored.start >= start then start, served = stored.start, stored.served end
  local resetAt = start + windowMs
  if served >= budget then return 0, budget, 0, resetAt, resetAt - now end
  served = min(served + cost, MAX_SAFE)
  local state = {start = start, served = served}
  return 1, budget, max(0, budget - served), resetAt, 0, state, resetAt - now
end

local function write(key, p, state, px)
  call('HSET', key, 's', format('%.0f', state.start), 'c', format('%.0f', state.served))
  call('PEXPIRE', key, px)
end
