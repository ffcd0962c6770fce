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
  local ring = raw(key)
  local last, counts, newest = math.floor(MAX_INSTANT_MS / (p.windowMs / p.buckets)), {}, nil
  for i = 2, #ring, 2 do
    local tick, count = string.match(ring[i], '^(%d+):(%d+)$')
    if not (tick and string.find(ring[i - 1], WHOLE)) then error(FOREIGN, 0) end
    tick, count = tonumber(tick), tonumber(count)
    if tick > last or count > MAX_SAFE then error(FOREIGN, 0) end
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
  local counts
  if stored then
    counts = stored.counts
    if stored.newest > tick then tick = stored.newest end
  end
  return tick, counts or {}
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

  local allowed, left, retry, state, ttl = 1, limit - projected, 0, nil, nil
  if projected <= limit then
    state = add(stored, counts, tick, cost)
    ttl = math.max(1, resetAt - now)
  else
    local excess = projected - limit
    if oldest > 0 and excess <= oldest * weight then
      retry = math.ceil(excess * w / oldest)
    else
      retry = math.ceil((tick + 1) * w - now)
    end
    allowed, left, retry = 0, limit - estimate, math.max(1, retry)
  end
  return allowed, limit, math.max(0, math.floor(left)), resetAt, retry, state, ttl
end

-- A ring of more buckets than a call may read has few ticks with units: what has left the window is
-- removed, instead of waiting to be overwritten.
local function write(key, p, state, px)
  if p.buckets > 5000 then
    for tick in pairs(state.counts) do
      if tick < state.newest - p.buckets then redis.call('HDEL', key, tick % (p.buckets + 1)) end
    end
  end
  for tick in pairs(state.changed) do
    local count = string.format('%.0f:%.0f', tick, state.counts[tick])
    redis.call('HSET', key, tick % (p.buckets + 1), count)
  end
  redis.call('PEXPIRE', key, px)
end

-- Give back.
local function ttlOf(p, tick, now)
  return math.max(1, math.ceil((tick + 1) * (p.windowMs / p.buckets) + p.windowMs) - now)
end

local function refund(p, stored, now, cost, chargedAt)
  local w = p.windowMs / p.buckets
  local tick, counts = tickAt(p, stored, now)
  local charged = math.floor(chargedAt / w)
  if not stored or charged < tick - p.buckets then return 1, 0, 0, 0, 0 end
  local ticks, units, state = {}, 0, nil
  for at in pairs(counts) do
    if at >= charged then ticks[#ticks + 1] = at end
  end
  table.sort(ticks)
  for place = 1, #ticks do
    local at = ticks[place]
    local taken = math.min(cost - units, counts[at])
    if taken > 0 then
      units = units + taken
      state = add(state or stored, counts, at, -taken)
    end
  end
  if units == 0 then return 1, 0, 0, 0, 0 end
  return 1, units, 0, 0, 0, state, ttlOf(p, state.newest, now)
end

local function charge(p, stored, now, cost)
  local limit, w = p.limit, p.windowMs / p.buckets
  local tick, counts = tickAt(p, stored, now)
  local estimate = estimateAt(p, counts, tick, now)
  local most = math.max(limit, math.floor(MAX_SAFE / (p.buckets + 1))) - (counts[tick] or 0)
  local units = math.min(cost, math.max(0, math.min(math.floor(2 * limit - estimate), most)))
  local state = add(stored, counts, tick, units)
  local remaining = math.max(0, math.floor(limit - (estimate + units)))
  local resetAt = math.ceil((tick + 1) * w + p.windowMs)
  return 1, limit, remaining, resetAt, cost - units, state, ttlOf(p, tick, now)
end

local function pause(p, stored, now, untilMs)
  if untilMs <= now then return 1, 0, 0, 0, 0 end
  local w = p.windowMs / p.buckets
  local most = math.max(p.limit, math.floor(MAX_SAFE / (p.buckets + 1)))
  local tick, counts = tickAt(p, stored, now)
  tick = math.max(tick, math.ceil((untilMs - 1) / w + 2 ^ 32 / most) - 1 - p.buckets)
  tick = math.min(tick, math.floor(MAX_INSTANT_MS / w))
  local missing = most - (counts[tick] or 0)
  if missing <= 0 then return 1, 0, 0, 0, 0 end
  return 1, 0, 0, 0, 0, add(stored, counts, tick, missing), ttlOf(p, tick, now)
end
