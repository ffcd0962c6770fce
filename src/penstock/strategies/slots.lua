-- Slots: a sorted set, one member per slot, scored with its expiry in ms.
--
-- What is held is counted by score, and the earliest expiry found by rank; the set is never read
-- whole to decide. Slots whose time is up are removed by the next write.
local function raw(key) return call('ZRANGE', key, 0, -1, 'WITHSCORES') end

-- Decide.
local function after(now) return '(' .. format('%.0f', now) end

local function read(key, p, now)
  local live = call('ZCOUNT', key, after(now), '+inf')
  return {key = key, live = live}
end

-- The earliest expiry of those that are held, but for one of them.
local function earliest(slots, now, id)
  local two = call('ZRANGEBYSCORE', slots.key, after(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
  local first = two[1] == id and 3 or 1
  return two[first + 1] and number(two[first + 1], WHOLE, MAX_STORED_MS)
end

local function latest(slots, id)
  local two = call('ZREVRANGE', slots.key, 0, 1, 'WITHSCORES')
  local first = two[1] == id and 3 or 1
  return two[first + 1] and number(two[first + 1], WHOLE, MAX_STORED_MS) or 0
end

local function requireUnchanged(slots)
  if not slots or slots.id then error('ERR slots cannot be asked for twice in one call', 0) end
end

local function deny(p, slots, now)
  local freeAt = earliest(slots, now) or now
  return 0, p.limit, max(0, p.limit - slots.live), freeAt, min(max(1, freeAt - now), MAX_SAFE)
end

local function check(p, slots, now, cost)
  requireUnchanged(slots)
  local free = p.limit - slots.live
  if free < cost then return deny(p, slots, now) end
  return 1, p.limit, free - cost, earliest(slots, now) or now, 0
end

local function write(key, p, slots, px)
  call('ZREMRANGEBYSCORE', key, '-inf', slots.gone)
  if slots.expires then
    call('ZADD', key, format('%.0f', slots.expires), slots.id)
  else
    call('ZREM', key, slots.id)
  end
  call('PEXPIRE', key, px)
end

-- Give back.
local function expiryOf(slots, now, id)
  local score = call('ZSCORE', slots.key, id)
  local expires = score and number(score, WHOLE, MAX_STORED_MS)
  return expires and expires > now and expires
end

local function hold(p, slots, now, id, expires)
  local others = slots.live - (expires and 1 or 0)
  expires = max(expires or 0, now + p.ttlMs)
  local first = min(earliest(slots, now, id) or expires, expires)
  slots.id, slots.expires, slots.gone = id, expires, format('%.0f', now)
  return 1, p.limit, p.limit - others - 1, first, 0, slots, max(latest(slots, id), expires) - now
end

local function take(p, slots, now, _, id)
  requireUnchanged(slots)
  local expires = expiryOf(slots, now, id)
  if slots.live >= p.limit and not expires then return deny(p, slots, now) end
  return hold(p, slots, now, id, expires)
end

local function renew(p, slots, now, _, id)
  requireUnchanged(slots)
  local expires = expiryOf(slots, now, id)
  if not expires then return deny(p, slots, now) end
  return hold(p, slots, now, id, expires)
end

local function release(p, slots, now, _, id)
  requireUnchanged(slots)
  if not expiryOf(slots, now, id) then return 1, 0, 0, 0, 0 end
  if slots.live == 1 then return 1, 1, 0, 0, 0, nil, 0 end
  slots.id, slots.gone = id, format('%.0f', now)
  return 1, 1, 0, 0, 0, slots, latest(slots, id) - now
end
