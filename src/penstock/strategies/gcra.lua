-- GCRA: one string, the TAT, written with all 17 digits.
--
-- A denial reads and answers; an admission is one SET that carries its expiry. A stored TAT before
-- `now` counts as `now`, so a key that outlives its ttl decides like one that is gone. One that is
-- half a step off the grid of 1/2048 ms is that of a pause.
local function raw(key) return redis.call('GET', key) end

-- Decide.
local function read(key)
  local tat = raw(key)
  if tat then
    -- It has a fraction, and no exponent: with 17 digits there is none below 1e17.
    tat = number(tat, '^%d+%.?%d*$', MAX_STORED_MS)
  end
  return tat
end

local function intervalOf(p) return math.floor(p.periodMs * 2048 / p.limit) / 2048 end

local function check(p, stored, now, cost)
  local interval = intervalOf(p)
  local tau = interval * p.burst
  local tat = stored and stored > now and stored or now
  local new = tat + interval * cost
  local allowAt = new - tau
  local allowed, retry, ttl = 1, 0, nil
  if now < allowAt then
    allowed, retry, new = 0, math.min(math.ceil(allowAt - now), MAX_SAFE), tat
  else
    if new * 2048 % 1 == 0.5 then new = new + 1 / 4096 end
    ttl = math.max(1, math.ceil(new - now))
  end
  local remaining = math.max(0, math.floor((tau - (new - now)) / interval))
  return allowed, p.burst, remaining, math.ceil(new), retry, new, ttl
end

local function write(key, p, tat, px)
  redis.call('SET', key, string.format('%.17g', tat), 'PX', px)
end

-- Give back.
local function take(p, tat, now, retry)
  local interval = intervalOf(p)
  local tau = interval * p.burst
  if tat - tau <= now and tat * 2048 % 1 == 0.5 then tat = tat + 1 / 4096 end
  local remaining = math.max(0, math.floor((tau - (tat - now)) / interval))
  return 1, p.burst, remaining, math.ceil(tat), retry, tat, math.max(1, math.ceil(tat - now))
end

local function refund(p, stored, now, cost, chargedAt)
  if not stored or stored <= now then return 1, 0, 0, 0, 0 end
  local interval = intervalOf(p)
  local tau, taken = interval * p.burst, interval * cost
  local lastStartsAt = math.ceil(stored - tau)
  if chargedAt > now and lastStartsAt > chargedAt then return 1, 0, 0, 0, 0 end
  local isPaused = now < stored - tau + interval and stored * 2048 % 1 == 0.5
  if isPaused and (chargedAt <= now or lastStartsAt < chargedAt) then return 1, 0, 0, 0, 0 end
  local unpaid = chargedAt - now + tau
  if unpaid <= 0 then return 1, 0, 0, 0, 0 end
  local new = math.max(stored - math.min(taken, unpaid), now)
  local units = math.min(cost, math.ceil((stored - new) / interval))
  return 1, units, 0, 0, 0, new, math.max(1, math.ceil(new - now))
end

local function charge(p, stored, now, cost)
  local interval = intervalOf(p)
  local tat = math.max(stored or now, now)
  local room = math.max(0, math.floor((2 * (interval * p.burst) - (tat - now)) / interval))
  local units = math.min(cost, room)
  return take(p, tat + interval * units, now, cost - units)
end

local function book(p, stored, now, cost, maxWaitMs)
  local interval = intervalOf(p)
  local tau, tat = interval * p.burst, math.max(stored or now, now)
  local new = tat + interval * cost
  local delay = math.max(0, math.min(math.ceil(new - tau - now), MAX_SAFE))
  if delay > maxWaitMs then
    local remaining = math.max(0, math.floor((tau - (tat - now)) / interval))
    return 0, p.burst, remaining, math.ceil(tat), delay
  end
  if new * 2048 % 1 == 0.5 then new = new + 1 / 4096 end
  return take(p, new, now, delay)
end

local function pause(p, stored, now, untilMs)
  local interval = intervalOf(p)
  local tau = interval * p.burst
  local tat = untilMs + (tau - interval) - 1 / 4096
  if stored and stored > tat then tat = math.ceil(stored - tau - 1 / 4096) + tau + 1 / 4096 end
  if untilMs <= now or tat == stored then return 1, 0, 0, 0, 0 end
  return 1, 0, 0, 0, 0, tat, math.max(1, math.ceil(tat - now))
end
