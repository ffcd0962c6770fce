-- Slots: a sorted set, one member per slot, scored with its expiry in ms; and the member `lost`,
-- scored with how many were not given back, negated. Who waits has a ticket: a member `w`, its number
-- in 16 digits, and the id; its score is the expiry of the ticket less 2 ^ 52.
--
-- The set is never read whole to decide: its size and its earliest expiry tell all, unless some are
-- over; those are removed by the next write, and counted. What a call changes is kept beside the
-- set until everything is decided, so that it may name a key more than once.
local function raw(key) return call('ZRANGE', key, 0, -1, 'WITHSCORES') end

-- Decide.
local TICKET_MS, TICKET_SHIFT, TICKETS_BELOW = 2000, 2 ^ 52, -(2 ^ 51)

local function after(now) return '(' .. format('%.0f', now) end

local function read(key, p, now)
  local size = call('ZCARD', key)
  if size == 0 then return {key = key, live = 0, lost = 0, known = 0} end
  local slot = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local score = number(slot[2], SIGNED, MAX_STORED_MS)
  if score > now then
    return {key = key, live = size, lost = 0, known = 0, first = score, of = slot[1]}
  end
  local known = score < 0 and -number(call('ZSCORE', key, 'lost') or '0', SIGNED, 0) or 0
  local over = call('ZCOUNT', key, 0, format('%.0f', now))
  local live = call('ZCOUNT', key, after(now), '+inf')
  slot = call('ZRANGEBYSCORE', key, after(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return {
    key = key, live = live, lost = known + over, known = known, queued = score < TICKETS_BELOW,
    first = slot[2] and number(slot[2], WHOLE, MAX_STORED_MS), of = slot[1],
    over = over > 0 and format('%.0f', now), now = now,
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
  if slots.queued then
    call('ZREMRANGEBYSCORE', key, '-inf', format('%.0f', slots.now - TICKET_SHIFT))
  end
  if slots.tickets then
    for name, expires in pairs(slots.tickets) do
      if expires then
        call('ZADD', key, format('%.0f', expires - TICKET_SHIFT), name)
      else
        call('ZREM', key, name)
      end
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

-- The tickets that are good, each with its expiry; false for one that a step before has taken out.
local function ticketsOf(slots, now)
  if not slots.tickets then
    slots.tickets = {}
    if slots.queued then
      local from, to = after(now - TICKET_SHIFT), '(' .. format('%.0f', TICKETS_BELOW)
      local found = call('ZRANGEBYSCORE', slots.key, from, to, 'WITHSCORES')
      for place = 1, #found, 2 do
        slots.tickets[found[place]] = tonumber(found[place + 1]) + TICKET_SHIFT
      end
    end
  end
  return slots.tickets
end

local function queue_up(p, slots, now, _, id)
  local tickets, mine, last = ticketsOf(slots, now), nil, 0
  for name, expires in pairs(tickets) do
    if expires and name:sub(18) == id then
      mine = name
    elseif expires then
      last = max(last, tonumber(name:sub(2, 17)))
    end
  end
  local held, ahead = expiryOf(slots, now, id), 0
  for name, expires in pairs(tickets) do
    if expires and name ~= mine and (not mine or name < mine) then ahead = ahead + 1 end
  end
  if held or slots.live + ahead < p.limit then
    if mine then tickets[mine] = false end
    local others = earliest(slots, now, id)
    local free, expires = hold(p, slots, now, id, held)
    return 1, p.limit, free, min(others or expires, expires), 0, slots, ttlOf(p, slots, now)
  end
  tickets[mine or 'w' .. format('%016.0f', last + 1) .. id] = now + TICKET_MS
  local denied, limit, remaining, resetAt, retryAfterMs = deny(p, slots, now)
  return denied, limit, remaining, resetAt, retryAfterMs, slots, ttlOf(p, slots, now)
end

local function renew(p, slots, now, _, id)
  local held = expiryOf(slots, now, id)
  if not held then return 0, p.limit, max(0, p.limit - slots.live), now, 1 end
  local free, expires = hold(p, slots, now, id, held)
  return 1, p.limit, free, expires, 0, slots, ttlOf(p, slots, now)
end

local function release(p, slots, now, _, id)
  local held, waited = expiryOf(slots, now, id), false
  if slots.queued or slots.tickets then
    for name, expires in pairs(ticketsOf(slots, now)) do
      if expires and name:sub(18) == id then slots.tickets[name], waited = false, true end
    end
  end
  if not held and not waited then return 1, 0, 0, 0, 0 end
  if held then
    slots.live = slots.live - 1
    change(slots, id, false)
  end
  return 1, held and 1 or 0, 0, 0, 0, slots, ttlOf(p, slots, now)
end

local function reclaim(p, slots, now)
  local lost = slots.lost
  if lost == 0 then return 1, 0, 0, 0, 0 end
  slots.lost = 0
  return 1, lost, 0, 0, 0, slots, ttlOf(p, slots, now)
end
