-- GCRA: one string, the TAT, written with all 17 digits.
--
-- A denial reads and answers; an admission is one SET that carries its expiry. A stored TAT before
-- `now` counts as `now`, so a key that outlives its ttl decides like one that is gone.
local function raw(key) return call('GET', key) end

-- Decide.
local function read(key)
  local text = raw(key)
  -- The TAT has a fraction, and no exponent: with 17 digits there is none below 1e17.
  return text and number(text, '^%d+%.?%d*$', MAX_STORED_MS)
end

local function intervalOf(p) return floor(p.periodMs * 2048 / p.limit) / 2048 end

local function check(p, stored, now, cost)
  local interval = intervalOf(p)
  local tau = interval * p.burst
  local tat = max(stored or now, now)
  local new = tat + interval * cost
  local allowAt = new - tau
  if now < allowAt then
    local remaining = max(0, floor((tau - (tat - now)) / interval))
    return 0, p.burst, remaining, ceil(tat), min(ceil(allowAt - now), MAX_SAFE)
  end
  local remaining = max(0, floor((tau - (new - now)) / interval))
  return 1, p.burst, remaining, ceil(new), 0, new, max(1, ceil(new - now))
end

local function write(key, p, tat, px)
  call('SET', key, format('%.17g', tat), 'PX', px)
end

-- Give back.
local function take(p, tat, now, retry)
  local interval = intervalOf(p)
  local remaining = max(0, floor((interval * p.burst - (tat - now)) / interval))
  return 1, p.burst, remaining, ceil(tat), retry, tat, max(1, ceil(tat - now))
end

local function refund(p, stored, now, cost, chargedAt)
  if not stored or stored <= now then return 1, 0, 0, 0, 0 end
  local interval = intervalOf(p)
  local tau, taken = interval * p.burst, interval * cost
  if chargedAt > now and ceil(stored - tau) > chargedAt then return 1, 0, 0, 0, 0 end
  local least = chargedAt - max(0, taken - tau)
  local new = stored - taken
  if ceil(new) < least then new = min(least, stored) end
  new = max(new, now)
  local units = min(cost, floor((stored - new) / interval))
  return 1, units, 0, 0, 0, new, max(1, ceil(new - now))
end

local function charge(p, stored, now, cost)
  local interval = intervalOf(p)
  return take(p, min(max(stored or now, now) + interval * cost, MAX_STORED_MS), now, 0)
end

local function book(p, stored, now, cost, maxWaitMs)
  local interval = intervalOf(p)
  local tau, tat = interval * p.burst, max(stored or now, now)
  local new = tat + interval * cost
  local delay = max(0, min(ceil(new - tau - now), MAX_SAFE))
  if delay > maxWaitMs then
    return 0, p.burst, max(0, floor((tau - (tat - now)) / interval)), ceil(tat), delay
  end
  return take(p, new, now, delay)
end

local function pause(p, stored, now, untilMs)
  local interval = intervalOf(p)
  local tat = untilMs + (interval * p.burst - interval)
  if untilMs <= now or (stored and stored >= tat) then return 1, 0, 0, 0, 0 end
  return 1, 0, 0, 0, 0, tat, max(1, ceil(tat - now))
end
