-- The sliding window log: a sorted set with one member per admitted unit, scored in ms.
--
-- What counts and where the k-th unit stands is asked by score and by rank, in logarithmic time; the
-- set is never read whole to decide, and what the oldest and the newest unit tell is not asked for
-- again: each command called from Lua costs more than the work it does. Units that have left the
-- window are removed by the next admission, not by a denial, which writes nothing.
--
-- A member must be new to the set, or adding it would admit a unit without counting it. Ours are
-- "u<stamp>.<n>", n counting on from the units that already bear that stamp: unique as long as
-- stamps leave the set all at once, which removal by score ensures, also when the clock goes back to
-- a stamp that was in use before. NX and the number that ZADD returns guard against members of other
-- clients: a name that is taken moves nothing and is made up for with the next one.
--
-- A pause is a member, "pause", that counts for more units than any limit has. Its score is one
-- window before its end, and no member is before it: what is older leaves the window during the
-- pause, and is removed with it. So it is seen where the oldest unit is looked at.
local function raw(key)
  local units, scores = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}
  for i = 2, #units, 2 do
    scores[i / 2] = string.format(units[i - 1] == 'pause' and 'pause%s' or '%s', units[i])
  end
  return scores
end

-- Decide.
local function stampAt(key, rank)
  local unit = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
  -- A score is a number, so that its form need not be looked at.
  local stamp = unit[2] + 0
  if stamp < 0 or stamp > MAX_STORED_MS or stamp % 1 ~= 0 then error(FOREIGN, 0) end
  return stamp, unit[1]
end

-- `count` units count. Those of the set, from the `oldest` on, stand behind `gone` others; what this
-- call takes in and gives back is kept as `changes`, by stamp, until everything is decided. If the
-- oldest is a pause, `paused` is the number of its members: 1, or 0 before it is written.
local function read(key, p, now)
  local edge, gone, count, oldest = now - p.windowMs, 0, redis.call('ZCARD', key), nil
  local paused = false
  if count > 0 then
    local stamp, name = stampAt(key, 0)
    oldest = stamp
    if stamp > edge and name == 'pause' then
      count, paused = count - 1 + 2 ^ 52, 1
    elseif stamp <= edge then
      gone = redis.call('ZCOUNT', key, '-inf', edge)
      count, oldest = count - gone, nil
      if count > 0 then
        local first = stampAt(key, gone)
        oldest = first
      end
    end
  end
  return {
    key = key, edge = edge, gone = gone, count = count, oldest = oldest,
    newest = false, free = false, changes = false, paused = paused,
  }
end

-- The stamp of the k-th unit that counts.
local function stampOf(log, k)
  local rank, found, stamps = log.gone + k, nil, {}
  if log.paused and k <= 2 ^ 52 then
    found = log.oldest
  elseif log.paused then
    rank = rank + log.paused - 2 ^ 52
  end
  for stamp in pairs(not found and log.changes or {}) do stamps[#stamps + 1] = stamp end
  table.sort(stamps)
  for place = 1, #stamps do
    local stamp = stamps[place]
    if rank <= redis.call('ZCOUNT', log.key, '-inf', string.format('(%.0f', stamp)) then break end
    rank = rank - log.changes[stamp]
    if rank <= redis.call('ZCOUNT', log.key, '-inf', stamp) then
      found = stamp
      break
    end
  end
  if not found then
    local stamp = stampAt(log.key, rank - 1)
    found = stamp
  end
  return found
end

local function change(log, stamp, units)
  if log.changes then
    log.changes[stamp] = (log.changes[stamp] or 0) + units
  else
    log.changes = {[stamp] = units}
  end
  log.count = log.count + units
end

-- With so many more units, stamped with the newest instant that is known. Nearly always that is
-- `now`, which is `free`, with nothing at it or later; to count is less work than to read the newest.
local function add(p, log, now, units)
  if not log.newest then
    log.newest, log.free = now, now
    if log.count > 0 and redis.call('ZCOUNT', log.key, now, '+inf') > 0 then
      local newest = stampOf(log, log.count)
      log.newest, log.free = math.max(now, newest), false
    end
  end
  log.oldest = log.oldest or log.newest
  change(log, log.newest, units)
  return log, log.newest - now + p.windowMs
end

local function check(p, log, now, cost)
  local limit, windowMs, count = p.limit, p.windowMs, log.count
  local resetAt = math.ceil((log.oldest or now) + windowMs)
  local allowed, retry, state, ttl = 1, windowMs, nil, nil

  if count + cost > limit then
    if count > 0 then
      local k = math.min(math.max(count + cost - limit, 1), count)
      local stamp = stampOf(log, k)
      retry = math.max(1, math.ceil(stamp + windowMs - now))
    end
    allowed = 0
  else
    retry, count = 0, count + cost
    state, ttl = add(p, log, now, cost)
  end
  return allowed, limit, math.max(0, limit - count), resetAt, retry, state, ttl
end

-- Units of a call nearly always bear one stamp, of which the first name is made once.
local named, name = nil, nil

-- In chunks, because the arguments of one command must fit Lua's stack.
local function write(key, p, log, px)
  if log.gone > 0 then redis.call('ZREMRANGEBYSCORE', key, '-inf', log.edge) end
  if log.paused == 0 then redis.call('ZADD', key, log.oldest, 'pause') end
  for stamp, units in pairs(log.changes or {}) do
    while units < 0 do
      local some = math.min(-units, 500)
      redis.call('ZREM', key, unpack(redis.call('ZRANGEBYSCORE', key, stamp, stamp, 'LIMIT', 0, some)))
      units = units + some
    end
    local n = 0
    if units > 0 and stamp == log.free then
      if named ~= stamp then named, name = stamp, string.format('u%.0f.0', stamp) end
      n, units = 1, units - redis.call('ZADD', key, 'NX', stamp, name)
    elseif units > 0 then
      n = redis.call('ZCOUNT', key, stamp, stamp)
    end
    while units > 0 do
      local chunk = {}
      for i = 1, math.min(units, 500) do
        chunk[2 * i - 1], chunk[2 * i] = stamp, string.format('u%.0f.%.0f', stamp, n)
        n = n + 1
      end
      units = units - redis.call('ZADD', key, 'NX', unpack(chunk))
    end
  end
  redis.call('PEXPIRE', key, px)
end

-- Give back.
local function unitsAt(log, stamp)
  local there = redis.call('ZCOUNT', log.key, stamp, stamp)
  return there + (log.changes and log.changes[stamp] or 0)
end

-- The first stamp from one on that has units, and how many; nothing and 0 if there is none. `changed`
-- are the stamps that earlier steps of this call have changed.
local function firstFrom(log, from, changed)
  local found, held = nil, 0
  for place = 1, #changed do
    local stamp, units = changed[place], 0
    if stamp >= from then units = unitsAt(log, stamp) end
    if units > 0 and (not found or stamp < found) then found, held = stamp, units end
  end
  while true do
    local stamp = redis.call('ZRANGEBYSCORE', log.key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if not stamp or (found and found <= stamp + 0) then break end
    local units = unitsAt(log, stamp + 0)
    if units > 0 then
      found, held = stamp + 0, units
      break
    end
    from = string.format('(%.0f', stamp + 0)
  end
  return found, held
end

local function refund(p, log, now, cost, chargedAt)
  if chargedAt > now or chargedAt <= log.edge or log.count == 0 then return 1, 0, 0, 0, 0 end
  if log.paused and chargedAt <= log.oldest then return 1, 0, 0, 0, 0 end
  local units, taken, from, changed = 0, 0, chargedAt, {}
  for stamp in pairs(log.changes or {}) do changed[#changed + 1] = stamp end
  repeat
    local stamp, held = firstFrom(log, from, changed)
    taken = math.min(cost - units, held)
    units = units + taken
    if taken > 0 then
      change(log, stamp, -taken)
      -- Either all units of this stamp are taken now, or enough.
      from = stamp + 1
    end
  until taken == 0
  if units == 0 then return 1, 0, 0, 0, 0 end
  -- What a later step of this call adds is stamped by what is left.
  log.newest, log.free = now, false
  if log.count == 0 then
    log.oldest = nil
    return 1, units, 0, 0, 0, log, 0
  end
  local newest = stampOf(log, log.count)
  log.oldest, log.newest = stampOf(log, 1), math.max(now, newest)
  return 1, units, 0, 0, 0, log, newest - now + p.windowMs
end

local function charge(p, log, now, cost)
  local limit, count = p.limit, log.count
  local units = math.min(cost, math.max(0, math.min(limit, 2 * limit - count)))
  local remaining = math.max(0, limit - count - units)
  local resetAt = math.ceil((log.oldest or now) + p.windowMs)
  if units == 0 then return 1, limit, remaining, resetAt, cost end
  return 1, limit, remaining, resetAt, cost - units, add(p, log, now, units)
end

local function pause(p, log, now, untilMs)
  local stamp = untilMs - p.windowMs
  if untilMs <= now or (log.paused and log.oldest >= stamp) then return 1, 0, 0, 0, 0 end
  -- What is older leaves the window before the pause ends, and goes now.
  local gone = redis.call('ZCOUNT', log.key, '-inf', stamp)
  local count = redis.call('ZCARD', log.key) - gone
  for at, units in pairs(log.changes or {}) do
    if at > stamp then count = count + units else log.changes[at] = nil end
  end
  log.edge, log.gone, log.oldest, log.paused, log.count = stamp, gone, stamp, 0, count + 2 ^ 52
  local newest = stampOf(log, log.count)
  log.newest, log.free = math.max(newest, now), false
  return 1, 0, 0, 0, 0, log, newest - now + p.windowMs
end
