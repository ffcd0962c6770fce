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

local function check(p, stored, now, cost)
  local interval = floor(p.periodMs * 2048 / p.limit) / 2048
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
