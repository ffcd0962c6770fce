-- Slots: a sorted set, one member per slot, scored with its expiry in ms; and the member `lost`,
-- scored with how many were not given back, negated.
--
-- The set is never read whole to decide: its size and its earliest expiry tell all, unless some are
-- over; those are removed by the next write, and counted. What a call changes is kept beside the
-- set until everything is decided, so that it may name a key more than once.
local function raw(key) return call('ZRANGE', key, 0, -1, 'WITHSCORES') end

-- Decide.
local function after(now) return '(' .. format('%.0f', now) end

local function read(key, p, now)
  local size = call('ZCARD', key)
  if size == 0 then return {key = key, live = 0, lost = 0, known = 0} end
  local slot = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local known = slot[1] == 'lost' and -number(slot[2], SIGNED, 0) or 0
  if known == 0 then
    local first = number(slot[2], WHOLE, MAX_STORED_MS)
    if first > now then
      return {key = key, live = size, lost = 0, known = 0, first = first, of = slot[1]}
    end
  end
  local live = call('ZCOUNT', key, after(now), '+inf')
  local over = size - live - (known > 0 and 1 or 0)
  slot = call('ZRANGEBYSCORE', key, after(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return {
    key = key, live = live, lost = known + over, known = known,
    first = slot[2] and number(slot[2], WHOLE, MAX_STORED_MS), of = slot[1],
    over = over > 0 and format('%.0f', now),
  }
end

-- The earliest expiry of those that are held, but for one of them.
local function earliest(slots, now, id)
  local changed = slots.changed
  if not changed and slots.of ~= id then return slots.first end
  local most, first = 2, nil
  for other, expires in pairs(changed or {}) do
    most = most + 1
    if expires and other ~= id and (not first or expires < first) then first = expires end
  end
  local some = call('ZRANGEBYSCORE', slots.key, after(now), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for place = 1, #some, 2 do
    if some[place] ~= id and not (changed and changed[some[place]] ~= nil) then
      local expires = number(some[place + 1], WHOLE, MAX_STORED_MS)
      return first and min(first, expires) or expires
    end
  end
  return first
end

local function deny(p, slots, now)
  local freeAt = earliest(slots, now) or now
  return 0, p.limit, max(0, p.limit - slots.live), freeAt, min(max(1, freeAt - now), MAX_SAFE)
end

local function check(p, slots, now, cost)
  local free = p.limit - slots.live
  if free < cost then return deny(p, slots, now) end
  return 1, p.limit, free - cost, earliest(slots, now) or now, 0
end

local function write(key, p, slots, px)
  if slots.over then call('ZREMRANGEBYSCORE', key, 0, slots.over) end
  if slots.lost ~= slots.known then
    if slots.lost > 0 then
      call('ZADD', key, format('%.0f', -slots.lost), 'lost')
    else
      call('ZREM', key, 'lost')
    end
  end
  for id, expires in pairs(slots.changed or {}) do
    if expires then
      call('ZADD', key, format('%.0f', expires), id)
    else
      call('ZREM', key, id)
    end
  end
  call('PEXPIRE', key, px)
end

-- Give back.
local function expiryOf(slots, now, id)
  local changed = slots.changed
  if changed and changed[id] ~= nil then return changed[id] end
  local score = call('ZSCORE', slots.key, id)
  local expires = score and number(score, WHOLE, MAX_STORED_MS)
  return expires and expires > now and expires
end

local function change(slots, id, expires)
  slots.changed = slots.changed or {}
  slots.changed[id] = expires
end

-- For how long the state matters: longer than the last of those that are in the set.
local function ttlOf(p, slots, now)
  local last = call('ZRANGE', slots.key, -1, -1, 'WITHSCORES')
  return max(last[2] and tonumber(last[2]) - now or 0, p.ttlMs) + p.countedForMs
end

local function hold(p, slots, now, id, held)
  if not held then slots.live = slots.live + 1 end
  local expires = max(held or 0, now + p.ttlMs)
  change(slots, id, expires)
  return max(0, p.limit - slots.live), expires
end

local function take(p, slots, now, _, id)
  local held = expiryOf(slots, now, id)
  if slots.live >= p.limit and not held then return deny(p, slots, now) end
  local others = earliest(slots, now, id)
  local free, expires = hold(p, slots, now, id, held)
  return 1, p.limit, free, min(others or expires, expires), 0, slots, ttlOf(p, slots, now)
end

local function renew(p, slots, now, _, id)
  local held = expiryOf(slots, now, id)
  if not held then return 0, p.limit, max(0, p.limit - slots.live), now, 1 end
  local free, expires = hold(p, slots, now, id, held)
  return 1, p.limit, free, expires, 0, slots, ttlOf(p, slots, now)
end

local function release(p, slots, now, _, id)
  if not expiryOf(slots, now, id) then return 1, 0, 0, 0, 0 end
  slots.live = slots.live - 1
  change(slots, id, false)
  return 1, 1, 0, 0, 0, slots, ttlOf(p, slots, now)
end

local function reclaim(p, slots, now)
  local lost = slots.lost
  if lost == 0 then return 1, 0, 0, 0, 0 end
  slots.lost = 0
  return 1, lost, 0, 0, 0, slots, ttlOf(p, slots, now)
end
