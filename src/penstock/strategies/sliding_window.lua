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

local function check(p, stored, now, cost)
  local limit, buckets, w = p.limit, p.buckets, p.windowMs / p.buckets
  local counts, tick = {}, floor(now / w)
  if stored then counts, tick = stored.counts, max(tick, stored.newest) end

  local edge = tick - buckets
  local full, oldest = 0, counts[edge] or 0
  for at, count in pairs(counts) do
    if at > edge then full = full + count end
  end

  local elapsed = max(0, now - tick * w)
  local weight = min(1, max(0, (w - elapsed) / w))
  local estimate = full + oldest * weight
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

  counts[tick] = (counts[tick] or 0) + cost
  local state, ttl = {counts = counts, newest = tick}, max(1, resetAt - now)
  return 1, limit, max(0, floor(limit - projected)), resetAt, 0, state, ttl
end

local function write(key, p, state, px)
  local field = format('%.0f', state.newest % (p.buckets + 1))
  call('HSET', key, field, format('%.0f:%.0f', state.newest, state.counts[state.newest]))
  call('PEXPIRE', key, px)
end
