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
local function raw(key)
  local units, scores = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}
  for i = 2, #units, 2 do scores[i / 2] = units[i] end
  return scores
end

-- Decide.
local function stampAt(key, rank)
  -- A score is a number, so that its form need not be looked at.
  local stamp = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + 0
  if stamp < 0 or stamp > MAX_STORED_MS or stamp % 1 ~= 0 then foreign() end
  return stamp
end

-- `stored` units of the window, from the `oldest` on, stand in the set behind `gone` others;
-- `added` ones with the stamp `newest` do not stand there yet.
local function read(key, p, now)
  local edge, gone, stored, oldest = now - p.windowMs, 0, redis.call('ZCARD', key), nil
  if stored > 0 then
    oldest = stampAt(key, 0)
    if oldest <= edge then
      gone = redis.call('ZCOUNT', key, '-inf', edge)
      stored, oldest = stored - gone, nil
      if stored > 0 then oldest = stampAt(key, gone) end
    end
  end
  return {key = key, edge = edge, gone = gone, stored = stored, oldest = oldest, added = 0}
end

-- Ranks no longer say where a unit stands once some are to be taken out.
local function requireWhole(log)
  if not log or log.returned then
    error('ERR a log cannot be given back to and asked again in one call', 0)
  end
end

-- With so many more units, stamped with the newest instant that is known. Nearly always that is
-- `now`, with nothing at it or later, and to count is less work than to read the newest.
local function add(p, log, now, units)
  if not log.newest then
    log.newest, log.isTaken = now, false
    if log.stored > 0 and redis.call('ZCOUNT', log.key, now, '+inf') > 0 then
      log.newest, log.isTaken = stampAt(log.key, -1), true
    end
  end
  log.oldest = log.oldest or log.newest
  log.added = log.added + units
  return log, log.newest - now + p.windowMs
end

local function check(p, log, now, cost)
  requireWhole(log)
  local limit, windowMs = p.limit, p.windowMs
  local count = log.stored + log.added
  local resetAt = math.ceil((log.oldest or now) + windowMs)

  if count + cost > limit then
    local retry = windowMs
    if count > 0 then
      local k = math.min(math.max(count + cost - limit, 1), count)
      local stamp = log.newest
      if k <= log.stored then stamp = stampAt(log.key, log.gone + k - 1) end
      retry = math.max(1, math.ceil(stamp + windowMs - now))
    end
    return 0, limit, math.max(0, limit - count), resetAt, retry
  end

  return 1, limit, limit - count - cost, resetAt, 0, add(p, log, now, cost)
end

local function write(key, p, log, px)
  if log.gone > 0 then redis.call('ZREMRANGEBYSCORE', key, '-inf', log.edge) end
  if log.returned then
    local units = log.units
    while units > 0 do
      local chunk = math.min(units, 500)
      local at = log.returned
      redis.call('ZREM', key, unpack(redis.call('ZRANGEBYSCORE', key, at, at, 'LIMIT', 0, chunk)))
      units = units - chunk
    end
  end
  local score, n, missing = log.newest or 0, 0, log.added
  if log.isTaken then n = redis.call('ZCOUNT', key, score, score) end
  while missing > 0 do
    local chunk = {score, string.format('u%.0f.%.0f', score, n)}
    -- In chunks, because the arguments of one command must fit Lua's stack.
    for i = 2, math.min(missing, 500) do
      n = n + 1
      chunk[2 * i - 1], chunk[2 * i] = score, string.format('u%.0f.%.0f', score, n)
    end
    n, missing = n + 1, missing - redis.call('ZADD', key, 'NX', unpack(chunk))
  end
  redis.call('PEXPIRE', key, px)
end

-- Give back.
local function refund(p, log, now, cost, chargedAt)
  requireWhole(log)
  if chargedAt > now or chargedAt <= log.edge or log.stored == 0 then return 1, 0, 0, 0, 0 end
  local there = redis.call('ZCOUNT', log.key, chargedAt, chargedAt)
  local units = math.min(cost, there)
  if units == 0 then return 1, 0, 0, 0, 0 end
  if units == log.stored then return 1, units, 0, 0, 0, nil, 0 end
  local newest = stampAt(log.key, -1)
  if newest == chargedAt and units == there then
    newest = stampAt(log.key, log.gone + log.stored - units - 1)
  end
  log.returned, log.units = chargedAt, units
  return 1, units, 0, 0, 0, log, newest - now + p.windowMs
end

local function charge(p, log, now, cost)
  requireWhole(log)
  local units, count = math.min(cost, p.limit), log.stored + log.added
  local resetAt = math.ceil((log.oldest or now) + p.windowMs)
  return 1, p.limit, math.max(0, p.limit - count - units), resetAt, 0, add(p, log, now, units)
end

local function pause(p, log, now, untilMs)
  requireWhole(log)
  if untilMs <= now then return 1, 0, 0, 0, 0 end
  local newest = log.newest or (log.stored > 0 and stampAt(log.key, -1)) or 0
  local stamp = math.max(newest, untilMs - p.windowMs)
  local there = 0
  if stamp == newest then there = redis.call('ZCOUNT', log.key, stamp, stamp) + log.added end
  if there >= p.limit then return 1, 0, 0, 0, 0 end
  if log.added > 0 and log.newest ~= stamp then
    error('ERR a log cannot be asked and paused in one call', 0)
  end
  log.newest, log.isTaken = stamp, stamp == newest
  log.oldest = log.oldest or stamp
  log.added = log.added + p.limit - there
  return 1, 0, 0, 0, 0, log, stamp - now + p.windowMs
end
