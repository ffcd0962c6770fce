-- The leaky bucket: a hash of two fields, `l` the level and `a` the instant of the last leak.
local function raw(key) return fieldsOf(key, 'l', 'a') end

-- Decide.
local function read(key)
  local stored = raw(key)
  if stored[1] then
    return {level = number(stored[1], WHOLE, 1e9), at = number(stored[2], WHOLE, MAX_STORED_MS)}
  end
end

local function check(p, stored, now, cost)
  local capacity, every, units = p.capacity, p.leakEveryMs, p.leakUnits
  local level, at = 0, now
  if stored then
    level, at = stored.level, stored.at
    if now > at then
      local leaks = math.floor((now - at) / every)
      level, at = math.max(0, level - leaks * units), at + leaks * every
    end
    if level == 0 then at = math.max(at, now) end
  end
  if level + cost > capacity then
    local remaining = math.max(0, capacity - level)
    local emptyAt = at + math.ceil(level / units) * every
    if cost > capacity then return 0, capacity, remaining, emptyAt, MAX_SAFE end
    local roomAt = at + math.ceil((level + cost - capacity) / units) * every
    return 0, capacity, remaining, emptyAt, roomAt - now
  end
  level = level + cost
  local emptyAt = at + math.ceil(level / units) * every
  return 1, capacity, capacity - level, emptyAt, 0, {level = level, at = at}, emptyAt - now
end

local function write(key, p, state, px)
  redis.call('HSET', key, 'l', state.level, 'a', state.at)
  redis.call('PEXPIRE', key, px)
end
