-- slidingWindowLog.check
-- KEYS  1 key
-- ARGV  1 now, 2 windowMs, 3 limit, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state sorted set: one member per accepted unit, score its ms

local FOREIGN = 'WRONGTYPE not the state of a slidingWindowLog'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

local now, cost = ARGV[1] + 0, ARGV[4] + 0
local p = {windowMs = ARGV[2] + 0, limit = ARGV[3] + 0}

-- What every strategy's file may use, beside what Lua and Redis have. Those are called by their own
-- names: a function that uses a local of the script costs a server more than four look-ups.

-- Raised as text, which servers before Redis 7 can report too.
local function foreign() error(FOREIGN, 0) end

-- A number from the text of a state: of this form, and no larger than `most`.
local function number(text, form, most)
  local value = string.find(text, form) and text + 0
  if not value or value > most then foreign() end
  return value
end

-- The two fields that a hash consists of, or false twice where there is no hash.
local function fieldsOf(key, first, second)
  local stored = redis.call('HMGET', key, first, second)
  if not (stored[1] and stored[2]) and redis.call('HLEN', key) > 0 then foreign() end
  return stored
end

local WHOLE, REAL, SIGNED = '^%d+$', '^%d+%.?%d*e?-?%d*$', '^-?%d+%.?%d*e?-?%d*$'

-- The server's clock is read once, so that all keys of a call are decided at one instant.
local time = redis.call('TIME')
local serverNow = time[1] * 1000 + math.floor(time[2] / 1000)
if now == 0 then now = serverNow end

-- For how long a key is kept whose state matters for `ttl`; longer if the caller is ahead of the
-- server. A whole number, which servers turn into text with all its digits.
local ahead = math.max(0, now - serverNow)
local function keepMs(ttl)
  local margin = ttl
  if margin < MARGIN_MS then margin = MARGIN_MS end
  if margin > MAX_MARGIN_MS then margin = MAX_MARGIN_MS end
  return ahead + ttl + margin
end

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

-- `count` units count. Those of the set, from the `oldest` on, stand behind `gone` others; what this
-- call takes in and gives back is kept as `changes`, by stamp, until everything is decided.
local function read(key, p, now)
  local edge, gone, count, oldest = now - p.windowMs, 0, redis.call('ZCARD', key), nil
  if count > 0 then
    oldest = stampAt(key, 0)
    if oldest <= edge then
      gone = redis.call('ZCOUNT', key, '-inf', edge)
      count, oldest = count - gone, nil
      if count > 0 then oldest = stampAt(key, gone) end
    end
  end
  return {
    key = key, edge = edge, gone = gone, count = count, oldest = oldest,
    newest = false, free = false, changes = false,
  }
end

-- The stamp of the k-th unit that counts.
local function stampOf(log, k)
  local rank = log.gone + k
  if not log.changes then return stampAt(log.key, rank - 1) end
  local stamps = {}
  for stamp in pairs(log.changes) do stamps[#stamps + 1] = stamp end
  table.sort(stamps)
  for place = 1, #stamps do
    local stamp = stamps[place]
    if rank <= redis.call('ZCOUNT', log.key, '-inf', string.format('(%.0f', stamp)) then break end
    rank = rank - log.changes[stamp]
    if rank <= redis.call('ZCOUNT', log.key, '-inf', stamp) then return stamp end
  end
  return stampAt(log.key, rank - 1)
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
      log.newest, log.free = math.max(now, stampOf(log, log.count)), false
    end
  end
  log.oldest = log.oldest or log.newest
  change(log, log.newest, units)
  return log, log.newest - now + p.windowMs
end

local function check(p, log, now, cost)
  local limit, windowMs, count = p.limit, p.windowMs, log.count
  local resetAt = math.ceil((log.oldest or now) + windowMs)

  if count + cost > limit then
    local retry = windowMs
    if count > 0 then
      local k = math.min(math.max(count + cost - limit, 1), count)
      retry = math.max(1, math.ceil(stampOf(log, k) + windowMs - now))
    end
    return 0, limit, math.max(0, limit - count), resetAt, retry
  end

  return 1, limit, limit - count - cost, resetAt, 0, add(p, log, now, cost)
end

-- Units of a call nearly always bear one stamp, of which the first name is made once.
local named, name = nil, nil

-- In chunks, because the arguments of one command must fit Lua's stack.
local function write(key, p, log, px)
  if log.count == 0 then return redis.call('DEL', key) end
  if log.gone > 0 then redis.call('ZREMRANGEBYSCORE', key, '-inf', log.edge) end
  for stamp, units in pairs(log.changes) do
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


local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  check(p, read(key, p, now), now, cost)
if allowed == 1 then write(key, p, state, keepMs(ttl)) end
return {allowed, limit, remaining, resetAt, retryAfterMs}
