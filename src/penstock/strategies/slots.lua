-- Slots: a sorted set, one member per slot, scored with its expiry in ms; and the member `lost`,
-- scored with how many were not given back, negated. Who waits has a ticket: a member `w`, its number
-- in 16 digits, and the id; its score is the expiry of the ticket less 2 ^ 52.
--
-- The set is never read whole to decide: its first two members and its size tell all, unless some
-- are over; those are removed by the next write, and counted. What a call changes is kept beside the
-- set until everything is decided, so that it may name a key more than once.
local function raw(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end

-- Decide.
local TICKET_MS, FRESH_MS, MAX_WAIT_MS = 2000, 250, 1000
local TICKET_SHIFT, TICKETS_BELOW = 2 ^ 52, -(2 ^ 51)

-- A score is a number, so that its form need not be looked at.
local function expiry(score)
  local expires = score + 0
  if expires > MAX_STORED_MS or expires % 1 ~= 0 then error(FOREIGN, 0) end
  return expires
end

-- Of those that are held at `now`: the `first` to expire, the id `of` that one, and when the
-- `second` does. `live` is how many there are, `moved` how many more by what this call has done.
local function read(key, p, now)
  -- With room for all that it may hold.
  local slots = {
    key = key, now = now, live = 0, moved = 0, lost = 0, known = 0, first = false, of = false,
    second = false, changed = false, prolonged = false,
  }
  local two = redis.call('ZRANGE', key, 0, 1, 'WITHSCORES')
  if two[1] then
    slots.live, slots.of = 1, two[1]
    slots.first = expiry(two[2])
    if slots.first <= now then
      local after, over = string.format('(%.0f', now), redis.call('ZCOUNT', key, 0, now)
      slots.queued = slots.first < TICKETS_BELOW
      if slots.first < 0 then
        local text = redis.call('ZSCORE', key, 'lost') or '0'
        local lost = number(text, SIGNED, 0)
        slots.known = -lost
      end
      slots.lost, slots.over, slots.prolonged = slots.known + over, over > 0, true
      slots.live, slots.first = redis.call('ZCOUNT', key, after, '+inf'), false
      two = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
      slots.of = two[1]
      if two[1] then
        slots.first = expiry(two[2])
      end
    elseif two[3] then
      slots.live = false
    end
    if two[3] then
      slots.second = expiry(two[4])
    end
  end
  return slots
end

-- How many are held, after what this call has done.
local function liveOf(slots)
  if not slots.live then slots.live = redis.call('ZCARD', slots.key) end
  return slots.live + slots.moved
end

-- The earliest expiry of those that are held, but for one of them.
local function earliest(slots, now, id)
  local changed, first = slots.changed, slots.first
  if not changed then
    if slots.of == id then first = slots.second end
  else
    local most, after = 2, string.format('(%.0f', now)
    first = nil
    for other, expires in pairs(changed) do
      most = most + 1
      if expires and other ~= id and (not first or expires < first) then first = expires end
    end
    local some = redis.call('ZRANGEBYSCORE', slots.key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    for place = 1, #some, 2 do
      if some[place] ~= id and changed[some[place]] == nil then
        local expires = expiry(some[place + 1])
        if not first or expires < first then first = expires end
        break
      end
    end
  end
  return first
end

local function check(p, slots, now, cost)
  local live = liveOf(slots)
  local freeAt = earliest(slots, now)
  freeAt = freeAt or now
  local allowed, free, retry = 1, p.limit - live - cost, 0
  if free < 0 then
    allowed, free, retry = 0, free + cost, math.min(math.max(1, freeAt - now), MAX_WAIT_MS)
  end
  return allowed, p.limit, math.max(0, free), freeAt, retry
end

-- Adds what has a score and removes what has none; in few calls, but not in one with more arguments
-- than Lua has room for.
local function put(key, scores, shift)
  local member, score = next(scores)
  if next(scores, member) ~= nil then
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
  elseif score then
    redis.call('ZADD', key, score - shift, member)
  else
    redis.call('ZREM', key, member)
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
  if slots.tickets and next(slots.tickets) then
    put(key, slots.tickets, TICKET_SHIFT)
  end
  if slots.changed then
    put(key, slots.changed, 0)
  end
  -- What is only taken out leaves a set that is kept for long enough.
  if slots.prolonged then redis.call('PEXPIRE', key, px) end
end

-- Give back.
-- When a slot expires; false if it is not held.
local function expiryOf(slots, now, id)
  local changed, expires = slots.changed, nil
  if changed then expires = changed[id] end
  if expires == nil then
    expires = false
    if slots.of == id then
      expires = slots.first
    elseif slots.second then
      local score = redis.call('ZSCORE', slots.key, id)
      if score then
        expires = expiry(score)
        if expires <= now then expires = false end
      end
    end
  end
  return expires
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
  local ttl = ttlOf(p, slots, now)
  local live = liveOf(slots)
  if expires > slots.last then slots.last = expires end
  if not others or others > expires then others = expires end
  return 1, p.limit, math.max(0, p.limit - live), others, 0, slots, ttl
end

-- Only for take.
local function take(p, slots, now, _, id)
  local held = expiryOf(slots, now, id)
  local live = liveOf(slots)
  local allowed, limit, free, freeAt, retry, state, ttl
  if held or live < p.limit then
    allowed, limit, free, freeAt, retry, state, ttl = taken(p, slots, now, id, held)
  else
    allowed, limit, free, freeAt, retry = check(p, slots, now, 1)
  end
  return allowed, limit, free, freeAt, retry, state, ttl
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
-- first: those before it whose owners have asked of late.
local function turnOf(slots, now, id)
  local tickets, fresh = ticketsOf(slots, now), now + TICKET_MS - FRESH_MS
  local mine, last, ahead = nil, 0, 0
  for name, expires in pairs(tickets) do
    if expires and name:sub(18) == id then
      mine = name
    elseif expires then
      last = math.max(last, tonumber(name:sub(2, 17)))
    end
  end
  for name, expires in pairs(tickets) do
    if expires and expires > fresh and name ~= mine and (not mine or name < mine) then
      ahead = ahead + 1
    end
  end
  return tickets, mine or 'w' .. string.format('%016.0f', last + 1) .. id, not mine, ahead
end

-- Only for queue_up.
local function queue_up(p, slots, now, _, id)
  local tickets, mine, isNew, ahead = turnOf(slots, now, id)
  local held = expiryOf(slots, now, id)
  local live = liveOf(slots)
  local allowed, limit, free, freeAt, retry, state, ttl
  if held or live + ahead < p.limit then
    if not isNew then tickets[mine] = false end
    allowed, limit, free, freeAt, retry, state, ttl = taken(p, slots, now, id, held)
  else
    tickets[mine], slots.prolonged = now + TICKET_MS, true
    -- Others come first, even where there is room.
    allowed, limit, free, freeAt, retry = check(p, slots, now, MAX_SAFE)
    state = slots
    ttl = ttlOf(p, slots, now)
  end
  return allowed, limit, free, freeAt, retry, state, ttl
end

-- Only for keep_ticket.
local function keep_ticket(p, slots, now, _, id)
  local held = expiryOf(slots, now, id)
  local ahead, state, ttl = 0, nil, nil
  if not held then
    local tickets, mine, isNew, others = turnOf(slots, now, id)
    tickets[mine], slots.prolonged, ahead, state = now + TICKET_MS, true, others, slots
    ttl = ttlOf(p, slots, now)
  end
  return 1, ahead, 0, 0, 0, state, ttl
end

-- Only for renew.
-- The expiries, 0 of those that are not held any more.
local function renew(p, slots, now, _, ids)
  local expiries, state, ttl = {}, nil, nil
  for place = 1, #ids do
    local id = ids[place]
    local held = expiryOf(slots, now, id)
    expiries[place] = 0
    if held then
      local expires = hold(p, slots, now, id, held)
      expiries[place], state = expires, slots
    end
  end
  local live = liveOf(slots)
  if state then
    ttl = ttlOf(p, slots, now)
    for place = 1, #ids do slots.last = math.max(slots.last, expiries[place]) end
  end
  return 1, p.limit, math.max(0, p.limit - live), expiries, 0, state, ttl
end

-- Only for release.
local function release(p, slots, now, _, id)
  local held = expiryOf(slots, now, id)
  local units, state, ttl = 0, nil, nil
  if slots.queued or slots.tickets then
    local tickets = ticketsOf(slots, now)
    for name, expires in pairs(tickets) do
      if expires and name:sub(18) == id then tickets[name], state = false, slots end
    end
  end
  if held then
    units, state, slots.moved = 1, slots, slots.moved - 1
    change(slots, id, false)
  end
  if state and slots.prolonged then
    ttl = ttlOf(p, slots, now)
  elseif state then
    ttl = 0
  end
  return 1, units, 0, 0, 0, state, ttl
end

-- Only for reclaim.
local function reclaim(p, slots, now)
  local lost, state, ttl = slots.lost, nil, nil
  if lost > 0 then
    slots.lost, state = 0, slots
    ttl = ttlOf(p, slots, now)
  end
  return 1, lost, 0, 0, 0, state, ttl
end
