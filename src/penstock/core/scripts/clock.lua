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
