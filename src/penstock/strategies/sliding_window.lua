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

-- Give back.
local function ttlOf(p, tick, now)
  return max(1, ceil((tick + 1) * (p.windowMs / p.buckets) + p.windowMs) - now)
end

local function refund(p, stored, now, cost, chargedAt)
  local w = p.windowMs / p.buckets
  local tick, counts = tickAt(p, stored, now)
  local edge, charged = tick - p.buckets, floor(chargedAt / w)
  local units = 0
  if charged >= edge then units = min(cost, counts[charged] or 0) end
  if units == 0 then return 1, 0, 0, 0, 0 end
  local state = add(stored, counts, charged, -units)
  return 1, units, 0, 0, 0, state, ttlOf(p, state.newest, now)
end

local function charge(p, stored, now, cost)
  local limit, w = p.limit, p.windowMs / p.buckets
  local tick, counts = tickAt(p, stored, now)
  local projected = estimateAt(p, counts, tick, now) + cost
  local most = max(limit, floor(MAX_SAFE / (p.buckets + 1)))
  local state = add(stored, counts, tick, min(cost, most - (counts[tick] or 0)))
  local resetAt = ceil((tick + 1) * w + p.windowMs)
  return 1, limit, max(0, floor(limit - projected)), resetAt, 0, state, ttlOf(p, tick, now)
end

local function pause(p, stored, now, untilMs)
  if untilMs <= now then return 1, 0, 0, 0, 0 end
  local w = p.windowMs / p.buckets
  local tick, counts = tickAt(p, stored, now)
  tick = min(max(tick, ceil(untilMs / w) - p.buckets), floor(MAX_INSTANT_MS / w))
  local missing = p.limit - (counts[tick] or 0)
  if missing <= 0 then return 1, 0, 0, 0, 0 end
  return 1, 0, 0, 0, 0, add(stored, counts, tick, missing), ttlOf(p, tick, now)
end
