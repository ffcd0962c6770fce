-- The record of a charge: a string of its instant, its life in ms and a secret.
local function raw(key) return redis.call('GET', key) end

-- Decide.
-- The string, or nil if there is no record, or its life is over.
local function read(key, p, now)
  local record = raw(key)
  if record then
    local at, life = string.match(record, '^(%d+) (%d+) %x+$')
    if not at then error(FOREIGN, 0) end
    if now >= at + life then record = nil end
  end
  return record or nil
end

local function check(p, record, now, cost)
  local allowed, retry = 1, 0
  if record then allowed, retry = 0, 1 end
  return allowed, 1, 0, now, retry
end

local function write(key, p, record, px)
  redis.call('SET', key, record, 'PX', px)
end

-- Give back.
-- Only for take.
local function take(p, record, now, _, argument)
  local life = string.match(argument, '^%d+') + 0
  local allowed, resetAt, retry, state, ttl = 0, now, 1, nil, nil
  if not record then
    allowed, resetAt, retry, ttl = 1, now + life, 0, life
    state = string.format('%.0f ', now) .. argument
  end
  return allowed, 1, 0, resetAt, retry, state, ttl
end

-- Only for release.
-- Denied where there is nothing to remove.
local function release(p, record, now)
  local held, ttl = 0, nil
  if record then held, ttl = 1, 0 end
  return held, held, 0, 0, 0, nil, ttl
end
