-- Slots: a sorted set, one member per slot, scored with its expiry in ms; and the member `lost`,
-- scored with how many were not given back, negated. Who waits has a ticket: a member `w`, its number
-- in 16 digits, and the id; its score is the expiry of the ticket less 2 ^ 52.
--
-- The set is never read whole to decide: its first two members and its size tell all, unless some
-- are over; those are removed by the next write, and counted. What a call changes is kept beside the
-- set until everything is decided, so that it may name a key more than once.
local function raw(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end

-- Decide.
local TICKET_MS, TICKET_SHIFT, TICKETS_BELOW = 2000, 2 ^ 52, -(2 ^ 51)

-- A score is a number, so that its form need not be looked at.
local function expiry(score)
  local expires = score + 0
  if expires > MAX_STORED_MS or expires % 1 ~= 0 then foreign() end
  return expires
end

-- Of those that are held at `now`: the `first` to expire, the id `of` that one, and when the
-- `second` does. `live` is how many there are, `moved` how many more by what this call has done.
local function read(key, p, now)
  local two = redis.call('ZRANGE', key, 0, 1, 'WITHSCORES')
  local score = two[1] and expiry(two[2])
  -- With room for all that it may hold.
  local slots = {
    key = key, now = now, live = false, moved = 0, lost = 0, known = 0, first = false, of = false,
    second = false, changed = false, prolonged = false,
  }
  if score and score <= now then
    local after = string.format('(%.0f', now)
    local over = redis.call('ZCOUNT', key, 0, now)
    slots.known = score < 0 and -number(redis.call('ZSCORE', key, 'lost') or '0', SIGNED, 0) or 0
    slots.lost, slots.over, slots.prolonged = slots.known + over, over > 0, true
    slots.queued = score < TICKETS_BELOW
    slots.live = redis.call('ZCOUNT', key, after, '+inf')
    two = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
    score = two[1] and expiry(two[2])
  end
  slots.first, slots.of = score, two[1]
  slots.second = two[3] and expiry(two[4])
  if not slots.second then slots.live = score and 1 or 0 end
  return slots
end

local function liveOf(slots)
  if not slots.live then slots.live = redis.call('ZCARD', slots.key) end
  return slots.live + slots.moved
end

-- The earliest expiry of those that are held, but for one of them.
local function earliest(slots, now, id)
  local changed = slots.changed
  if not changed then
    if slots.of ~= id then return slots.first end
    return slots.second
  end
  local most, first = 2, nil
  for other, expires in pairs(changed) do
    most = most + 1
    if expires and other ~= id and (not first or expires < first) then first = expires end
  end
  local after = string.format('(%.0f', now)
  local some = redis.call('ZRANGEBYSCORE', slots.key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for place = 1, #some, 2 do
    if some[place] ~= id and changed[some[place]] == nil then
      local expires = expiry(some[place + 1])
      return first and math.min(first, expires) or expires
    end
  end
  return first
end

local function deny(p, slots, now)
  local freeAt = earliest(slots, now) or now
  local retry = math.min(math.max(1, freeAt - now), MAX_SAFE)
  return 0, p.limit, math.max(0, p.limit - liveOf(slots)), freeAt, retry
end

local function check(p, slots, now, cost)
  local free = p.limit - liveOf(slots)
  if free < cost then return deny(p, slots, now) end
  return 1, p.limit, free - cost, earliest(slots, now) or now, 0
end

-- Adds what has a score and removes what has none; in few calls, but not in one with more arguments
-- than Lua has room for.
local function put(key, scores, shift)
  local member, score = next(scores)
  if next(scores, member) == nil then
    if not score then return redis.call('ZREM', key, member) end
    return redis.call('ZADD', key, score - shift, member)
  end
  local added, removed, some, others, atOnce = {}, {}, 0, 0, 500
  for each, at in pairs(scores) do
    if at then
      added[some + 1], added[some + 2], some = at - shift, each, some + 2
    else
      removed[others + 1], others = each, others + 1
    end
  end
  for place = 1, some, atOnce do
    redis.call('ZADD', key, unpack(added, place, math.min(some, place + atOnce - 1)))
  end
  for place = 1, others, atOnce do
    redis.call('ZREM', key, unpack(removed, place, math.min(others, place + atOnce - 1)))
  end
end

local function write(key, p, slots, px)
  if slots.over then redis.call('ZREMRANGEBYSCORE', key, 0, slots.now) end
  if slots.lost ~= slots.known then
    if slots.lost > 0 then
      redis.call('ZADD', key, -slots.lost, 'lost')
    else
      redis.call('ZREM', key, 'lost')
    end
  end
  if slots.queued then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', slots.now - TICKET_SHIFT)
  end
  if slots.tickets and next(slots.tickets) then put(key, slots.tickets, TICKET_SHIFT) end
  if slots.changed then put(key, slots.changed, 0) end
  -- What is only taken out leaves a set that is kept for long enough.
  if slots.prolonged then redis.call('PEXPIRE', key, px) end
end

-- Give back.
local function expiryOf(slots, now, id)
  local changed = slots.changed
  if changed and changed[id] ~= nil then return changed[id] end
  if slots.of == id then return slots.first end
  if not slots.second then return false end
  local score = redis.call('ZSCORE', slots.key, id)
  local expires = score and expiry(score)
  return expires and expires > now and expires
end

local function change(slots, id, expires)
  if slots.changed then slots.changed[id] = expires else slots.changed = {[id] = expires} end
end

-- For how long the state matters: longer than the last of those that are in the set.
local function ttlOf(p, slots, now)
  if not slots.last then
    slots.last = slots.first or 0
    if slots.second then
      slots.last = tonumber(redis.call('ZRANGE', slots.key, -1, -1, 'WITHSCORES')[2])
    end
  end
  return math.max(slots.last - now, p.ttlMs) + p.countedForMs
end

-- Only for take, queue_up, renew.
local function hold(p, slots, now, id, held)
  if not held then slots.moved = slots.moved + 1 end
  local expires = now + p.ttlMs
  if held and held > expires then expires = held end
  change(slots, id, expires)
  slots.prolonged = true
  return expires
end

-- Only for take, queue_up.
local function taken(p, slots, now, id, held)
  local others = earliest(slots, now, id)
  local expires = hold(p, slots, now, id, held)
  local ttl, free = ttlOf(p, slots, now), p.limit - liveOf(slots)
  if expires > slots.last then slots.last = expires end
  if not others or others > expires then others = expires end
  return 1, p.limit, free > 0 and free or 0, others, 0, slots, ttl
end

-- Only for take.
local function take(p, slots, now, _, id)
  local held = expiryOf(slots, now, id)
  if not held and liveOf(slots) >= p.limit then return deny(p, slots, now) end
  return taken(p, slots, now, id, held)
end

-- Only for queue_up, keep_ticket, release.
-- The tickets that are good, each with its expiry; false for one that a step before has taken out.
local function ticketsOf(slots, now)
  if not slots.tickets then
    slots.tickets = {}
    if slots.queued then
      local from = string.format('(%.0f', now - TICKET_SHIFT)
      local to = string.format('(%.0f', TICKETS_BELOW)
      local found = redis.call('ZRANGEBYSCORE', slots.key, from, to, 'WITHSCORES')
      for place = 1, #found, 2 do
        slots.tickets[found[place]] = tonumber(found[place + 1]) + TICKET_SHIFT
      end
    end
  end
  return slots.tickets
end

-- Only for queue_up, keep_ticket.
-- The tickets, the caller's own or what it would be called, whether that is new, and how many come
-- first.
local function turnOf(slots, now, id)
  local tickets, mine, last, ahead = ticketsOf(slots, now), nil, 0, 0
  for name, expires in pairs(tickets) do
    if expires and name:sub(18) == id then
      mine = name
    elseif expires then
      last = math.max(last, tonumber(name:sub(2, 17)))
    end
  end
  for name, expires in pairs(tickets) do
    if expires and name ~= mine and (not mine or name < mine) then ahead = ahead + 1 end
  end
  return tickets, mine or 'w' .. string.format('%016.0f', last + 1) .. id, not mine, ahead
end

-- Only for queue_up.
local function queue_up(p, slots, now, _, id)
  local tickets, mine, isNew, ahead = turnOf(slots, now, id)
  local held = expiryOf(slots, now, id)
  if held or liveOf(slots) + ahead < p.limit then
    if not isNew then tickets[mine] = false end
    return taken(p, slots, now, id, held)
  end
  tickets[mine], slots.prolonged = now + TICKET_MS, true
  local denied, limit, remaining, resetAt, retryAfterMs = deny(p, slots, now)
  return denied, limit, remaining, resetAt, retryAfterMs, slots, ttlOf(p, slots, now)
end

-- Only for keep_ticket.
local function keep_ticket(p, slots, now, _, id)
  if expiryOf(slots, now, id) then return 1, 0, 0, 0, 0 end
  local tickets, mine, _, ahead = turnOf(slots, now, id)
  tickets[mine], slots.prolonged = now + TICKET_MS, true
  return 1, ahead, 0, 0, 0, slots, ttlOf(p, slots, now)
end

-- Only for renew.
-- The expiries, 0 of those that are not held any more.
local function renew(p, slots, now, _, ids)
  local expiries, some = {}, false
  for place = 1, #ids do
    local held = expiryOf(slots, now, ids[place])
    expiries[place] = held and hold(p, slots, now, ids[place], held) or 0
    some = some or held
  end
  local free = math.max(0, p.limit - liveOf(slots))
  if not some then return 1, p.limit, free, expiries, 0 end
  local ttl = ttlOf(p, slots, now)
  for place = 1, #ids do slots.last = math.max(slots.last, expiries[place]) end
  return 1, p.limit, free, expiries, 0, slots, ttl
end

-- Only for release.
local function release(p, slots, now, _, id)
  local held, waited = expiryOf(slots, now, id), false
  if slots.queued or slots.tickets then
    for name, expires in pairs(ticketsOf(slots, now)) do
      if expires and name:sub(18) == id then slots.tickets[name], waited = false, true end
    end
  end
  if not held and not waited then return 1, 0, 0, 0, 0 end
  if held then
    slots.moved = slots.moved - 1
    change(slots, id, false)
  end
  if not slots.prolonged then return 1, 1, 0, 0, 0, slots, 0 end
  return 1, held and 1 or 0, 0, 0, 0, slots, ttlOf(p, slots, now)
end

-- Only for reclaim.
local function reclaim(p, slots, now)
  local lost = slots.lost
  if lost == 0 then return 1, 0, 0, 0, 0 end
  slots.lost = 0
  return 1, lost, 0, 0, 0, slots, ttlOf(p, slots, now)
end
