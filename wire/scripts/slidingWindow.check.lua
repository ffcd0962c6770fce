-- slidingWindow.check
-- KEYS  1 key
-- ARGV  1 now, 2 windowMs, 3 limit, 4 cost, 5 buckets
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state hash: field tick % (buckets + 1), value "<tick>:<count>", each %.0f

local FOREIGN = 'WRONGTYPE not the state of a slidingWindow'
local MARGIN_MS, MAX_MARGIN_MS, MAX_SAFE, MAX_SPAN_MS, MAX_INSTANT_MS, MAX_STORED_MS = 60000, 86400000, 9007199254740991, 4398046511104, 70368744177664, 140737488355328

local now, cost = tonumber(ARGV[1]), tonumber(ARGV[4])
local p = {windowMs = tonumber(ARGV[2]), limit = tonumber(ARGV[3]), buckets = tonumber(ARGV[5])}

-- What every strategy's file may use.
local call, format, find, match = redis.call, string.format, string.find, string.match
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local tonumber = tonumber

-- Raised as text, which servers before Redis 7 can report too.
local function foreign() error(FOREIGN, 0) end

-- A number from the text of a state: of this form, and no larger than `most`.
local function number(text, form, most)
  local value = find(text, form) and tonumber(text)
  if not value or value > most then foreign() end
  return value
end

-- The two fields that a hash consists of, or false twice where there is no hash.
local function fieldsOf(key, first, second)
  local stored = call('HMGET', key, first, second)
  if not (stored[1] and stored[2]) and call('HLEN', key) > 0 then foreign() end
  return stored
end

local WHOLE, REAL, SIGNED = '^%d+$', '^%d+%.?%d*e?-?%d*$', '^-?%d+%.?%d*e?-?%d*$'

-- The server's clock is read once at most, so that all keys of a call are decided at one instant.
local ownClock, serverNow = now == 0, nil
local function serverMs()
  if not serverNow then
    local time = call('TIME')
    serverNow = time[1] * 1000 + floor(time[2] / 1000)
  end
  return serverNow
end
if ownClock then now = serverMs() end

-- For how long a key is kept whose state matters for `ttl`. A whole number, which servers turn into
-- text with all its digits.
local function keepMs(ttl)
  local ahead = ownClock and 0 or max(0, now - serverMs())
  return ahead + ttl + min(max(ttl, MARGIN_MS), MAX_MARGIN_MS)
end

-- The sliding window: a hash used as a ring.
--
-- Tick t lives in field t % (buckets + 1) as "<t>:<count>". The window spans buckets + 1 ticks, so
-- the field of the current tick is either its own or holds one that has left the window, and is
-- simply overwritten. What is stale elsewhere in the ring is told by its tick and skipped.
--
-- The ring is read whole. It has at most buckets + 1 fields and often far fewer, and naming them all
-- in one command would overflow Lua's stack for rings of some thousands.
local function raw(key) return call('HGETALL', key) end

-- Decide.
local function read(key, p)
  local last, ring = floor(MAX_INSTANT_MS / (p.windowMs / p.buckets)), raw(key)
  local counts, newest = {}, nil
  for i = 2, #ring, 2 do
    local tick, count = match(ring[i], '^(%d+):(%d+)$')
    if not (tick and find(ring[i - 1], WHOLE)) then foreign() end
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
  counts[tick], changed[tick] = (counts[tick] or 0) + units, true
  return {counts = counts, changed = changed, newest = max(tick, stored and stored.newest or tick)}
end

local function tickAt(p, stored, now)
  local tick = floor(now / (p.windowMs / p.buckets))
  if stored then return max(tick, stored.newest), stored.counts end
  return tick, {}
end

-- What counts at `now`, whose tick is `tick`; and the oldest tick, with its weight in that.
local function estimateAt(p, counts, tick, now)
  local w, edge = p.windowMs / p.buckets, tick - p.buckets
  local full, oldest = 0, counts[edge] or 0
  for at, count in pairs(counts) do
    if at > edge then full = full + count end
  end
  local elapsed = max(0, now - tick * w)
  local weight = min(1, max(0, (w - elapsed) / w))
  return full + oldest * weight, oldest, weight
end

local function check(p, stored, now, cost)
  local limit, w = p.limit, p.windowMs / p.buckets
  local tick, counts = tickAt(p, stored, now)
  local estimate, oldest, weight = estimateAt(p, counts, tick, now)
  local projected = estimate + cost
  local resetAt = ceil((tick + 1) * w + p.windowMs)

  if projected > limit then
    local excess = projected - limit
    local retry
    if oldest > 0 and excess <= oldest * weight then
      retry = ceil(excess * w / oldest)
    else
      retry = ceil((tick + 1) * w - now)
    end
    return 0, limit, max(0, floor(limit - estimate)), resetAt, max(1, retry)
  end

  local state = add(stored, counts, tick, cost)
  return 1, limit, max(0, floor(limit - projected)), resetAt, 0, state, max(1, resetAt - now)
end

local function write(key, p, state, px)
  for tick in pairs(state.changed) do
    call('HSET', key, tick % (p.buckets + 1), format('%.0f:%.0f', tick, state.counts[tick]))
  end
  call('PEXPIRE', key, px)
end


local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  check(p, read(key, p, now), now, cost)
if allowed == 1 then write(key, p, state, keepMs(ttl)) end
return {allowed, limit, remaining, resetAt, retryAfterMs}
