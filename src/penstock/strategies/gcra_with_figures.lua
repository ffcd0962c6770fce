-- GCRA, with figures: one string, the TAT, the interval and tau that it was written with, and
-- the instant of that.
--
-- The functions below replace those of `gcra.lua` that read and write. A TAT of other figures is
-- converted when it is read.
local function raw(key) return redis.call('GET', key) end

-- Decide.
local function middle(one, other, third)
  return math.max(math.min(one, other), math.min(math.max(one, other), third))
end

local function adopt(p, tat, now, interval, tau, at)
  local ownInterval = math.floor(p.periodMs * 2048 / p.limit) / 2048
  local ownTau = ownInterval * p.burst
  local adopted = tat
  if tat > now and (interval ~= ownInterval or tau ~= ownTau) then
    if tat * 2048 % 1 == 0.5 then
      adopted = tat - (tau - interval) + (ownTau - ownInterval)
    else
      local owed = math.max(0, tat - at - tau)
      local used = tat - at - owed
      local kept = middle(used * ownInterval / interval, used * ownTau / tau, used)
      if owed > 0 then kept = math.max(kept, ownTau - ownInterval) end
      if kept ~= used then
        adopted = math.min(at + owed + math.ceil(kept * (1 - 2 ^ -50) * 2048) / 2048, MAX_STORED_MS)
      end
    end
  end
  return adopted
end

local function read(key, p, now)
  local text = raw(key)
  local tat
  if text then
    local written, interval, tau, at = string.match(text, '^(%S+) (%S+) (%S+) (%S+)$')
    if not written then error(FOREIGN, 0) end
    local stored = number(written, '^%d+%.?%d*$', MAX_STORED_MS)
    local interval = number(interval, REAL, MAX_STORED_MS)
    local tau = number(tau, REAL, MAX_STORED_MS)
    local at = number(at, WHOLE, MAX_STORED_MS)
    if interval <= 0 or tau <= 0 then error(FOREIGN, 0) end
    local adopted = adopt(p, stored, now, interval, tau, at)
    tat = adopted
  end
  return tat
end

local function write(key, p, tat, px)
  local interval = math.floor(p.periodMs * 2048 / p.limit) / 2048
  local state = string.format('%.17g %.17g %.17g %.0f', tat, interval, interval * p.burst, now)
  redis.call('SET', key, state, 'PX', px)
end
