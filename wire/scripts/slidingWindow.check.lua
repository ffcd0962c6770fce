-- slidingWindow.check
-- KEYS  1 key
-- ARGV  1 now, 2 windowMs, 3 limit, 4 cost, 5 buckets
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: field tick % (buckets + 1), value "<tick>:<count>", each %.0f

local FOREIGN = 'WRONGTYPE not the state of a slidingWindow'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

local now, cost = ARGV[1] + 0, ARGV[4] + 0
local p = {windowMs = ARGV[2] + 0, limit = ARGV[3] + 0, buckets = ARGV[5] + 0}

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

-- The sliding window: a hash used as a ring.
--
-- Tick t lives in field t % (buckets + 1) as "<t>:<count>". The window spans buckets + 1 ticks, so
-- the field of the current tick is either its own or holds one that has left the window, and is
-- simply overwritten. What is stale elsewhere in the ring is told by its tick and skipped.
--
-- The ring is read whole. It has at most buckets + 1 fields and often far fewer, and naming them all
-- in one command would overflow Lua's stack for rings of some thousands.
local function raw(key) return redis.call('HGETALL', key) end

-- Decide.
local function read(key, p)
  local last, ring = math.floor(MAX_INSTANT_MS / (p.windowMs / p.buckets)), raw(key)
  local counts, newest = {}, nil
  for i = 2, #ring, 2 do
    local tick, count = string.match(ring[i], '^(%d+):(%d+)$')
    if not (tick and string.find(ring[i - 1], WHOLE)) then foreign() end
    tick, count = tonumber(tick), tonumber(count)
    if tick > last or count > MAX_SAFE then foreign() end
    counts[tick] = count
    if not newest or tick > newest then newest = tick end
  end
  return newest and {counts = counts, newest = newest}
end

-- With so many more units in a tick, which is remembered as to be written.
local function add(stored, counts, tick, units)
  local changed = stored and stored.changed or {}
  local newest = stored and stored.newest > tick and stored.newest or tick
  counts[tick], changed[tick] = (counts[tick] or 0) + units, true
  return {counts = counts, changed = changed, newest = newest}
end

local function tickAt(p, stored, now)
  local tick = math.floor(now / (p.windowMs / p.buckets))
  if not stored then return tick, {} end
  return stored.newest > tick and stored.newest or tick, stored.counts
end

-- What counts at `now`, whose tick is `tick`; and the oldest tick, with its weight in that.
local function estimateAt(p, counts, tick, now)
  local w, edge = p.windowMs / p.buckets, tick - p.buckets
  local full, oldest = 0, counts[edge] or 0
  for at, count in pairs(counts) do
    if at > edge then full = full + count end
  end
  local elapsed = now - tick * w
  if elapsed < 0 then elapsed = 0 end
  local weight = (w - elapsed) / w
  if weight < 0 then weight = 0 end
  return full + oldest * weight, oldest, weight
end

local function check(p, stored, now, cost)
  local limit, w = p.limit, p.windowMs / p.buckets
  local tick, counts = tickAt(p, stored, now)
  local estimate, oldest, weight = estimateAt(p, counts, tick, now)
  local projected = estimate + cost
  local resetAt = math.ceil((tick + 1) * w + p.windowMs)

  if projected > limit then
    local excess = projected - limit
    local retry
    if oldest > 0 and excess <= oldest * weight then
      retry = math.ceil(excess * w / oldest)
    else
      retry = math.ceil((tick + 1) * w - now)
    end
    return 0, limit, math.max(0, math.floor(limit - estimate)), resetAt, math.max(1, retry)
  end

  local state, ttl = add(stored, counts, tick, cost), math.max(1, resetAt - now)
  return 1, limit, math.floor(limit - projected), resetAt, 0, state, ttl
end

local function write(key, p, state, px)
  for tick in pairs(state.changed) do
    local count = string.format('%.0f:%.0f', tick, state.counts[tick])
    redis.call('HSET', key, tick % (p.buckets + 1), count)
  end
  redis.call('PEXPIRE', key, px)
end


local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  check(p, read(key, p, now), now, cost)
if allowed == 1 then write(key, p, state, keepMs(ttl)) end
return {allowed, limit, remaining, resetAt, retryAfterMs}
