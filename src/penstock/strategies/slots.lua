-- Slots: a sorted set, one member per slot, scored with its expiry in ms.
--
-- The set is never read whole to decide: its size and its earliest expiry tell all, unless some are
-- over; those are removed by the next write. The key outlives the last slot by a margin, which also
-- covers slots that a clock ahead of this one has given out.
local function raw(key) return call('ZRANGE', key, 0, -1, 'WITHSCORES') end

-- Decide.
local function read(key, p, now)
  local held, first = call('ZCARD', key), nil
  if held > 0 then
    local slot = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    first = number(slot[2], WHOLE, MAX_STORED_MS)
    if first <= now then
      -- Some are over: the earliest of those that are not.
      local after = '(' .. format('%.0f', now)
      held = call('ZCOUNT', key, after, '+inf')
      slot = call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      local gone = format('%.0f', now)
      return {key = key, live = held, first = slot[2] and tonumber(slot[2]), of = slot[1], gone = gone}
    end
    return {key = key, live = held, first = first, of = slot[1]}
  end
  return {key = key, live = 0}
end

-- The earliest expiry of those that are held, but for one of them.
local function earliest(slots, now, id)
  if slots.of ~= id then return slots.first end
  local after = '(' .. format('%.0f', now)
  local two = call('ZRANGEBYSCORE', slots.key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
  return two[4] and number(two[4], WHOLE, MAX_STORED_MS)
end

local function requireUnchanged(slots)
  if not slots or slots.id then error('ERR slots cannot be asked for twice in one call', 0) end
end

local function deny(p, slots, now)
  local freeAt = slots.first or now
  return 0, p.limit, max(0, p.limit - slots.live), freeAt, min(max(1, freeAt - now), MAX_SAFE)
end

local function check(p, slots, now, cost)
  requireUnchanged(slots)
  local free = p.limit - slots.live
  if free < cost then return deny(p, slots, now) end
  return 1, p.limit, free - cost, slots.first or now, 0
end

local function write(key, p, slots, px)
  if slots.gone then call('ZREMRANGEBYSCORE', key, '-inf', slots.gone) end
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
  slots.id, slots.expires = id, expires
  return 1, p.limit, p.limit - others - 1, first, 0, slots, expires - now
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
  slots.id = id
  return 1, 1, 0, 0, 0, slots, p.ttlMs
end
