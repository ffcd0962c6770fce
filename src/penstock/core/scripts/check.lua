local key = KEYS[1]
local stored = read(key, p, now)
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl = check(p, stored, now, cost)
if allowed == 1 then
  local px = keepMs(ttl)
  write(key, p, state, px)
end
return {allowed, limit, remaining, resetAt, retryAfterMs}
