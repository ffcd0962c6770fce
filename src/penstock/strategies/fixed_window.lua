-- The fixed window: a hash of two fields, `s` the window's start and `c` its count.
--
-- Both anchors keep the same state and differ in one line, the window that `now` falls into. They
-- are two scripts, because a client that knows only the epoch's has no argument for the other.
--
-- Every admission sets the expiry, not only the one that opens a window: the next caller may have
-- been given a longer window, or a clock that is behind.
--
-- Whole numbers up to 2^53 divide and multiply exactly here: floor(now / windowMs) is never rounded
-- up to the next window, and a sum too large to be exact is above every limit anyway.
local function raw(key) return fieldsOf(key, 's', 'c') end

-- Decide.
local function read(key)
  local stored = raw(key)
  if stored[1] then
    local start = number(stored[1], WHOLE, MAX_STORED_MS)
    return {start = start, count = number(stored[2], WHOLE, MAX_SAFE)}
  end
end

local function check(p, stored, now, cost)
  local limit, windowMs = p.limit, p.windowMs
  local start, count = floor(now / windowMs) * windowMs, 0
  if p.anchor == 'first' then
    start = now
    if stored and now - stored.start < windowMs then start = stored.start end
  end
  if stored and stored.start >= start then start, count = stored.start, stored.count end
  local resetAt = start + windowMs
  if count + cost > limit then
    return 0, limit, max(0, limit - count), resetAt, resetAt - now
  end
  count = count + cost
  return 1, limit, limit - count, resetAt, 0, {start = start, count = count}, resetAt - now
end

local function write(key, p, state, px)
  call('HSET', key, 's', format('%.0f', state.start), 'c', format('%.0f', state.count))
  call('PEXPIRE', key, px)
end
