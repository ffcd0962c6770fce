local key = KEYS[1]
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
  operation(p, read(key, p, now) or false, now, cost, argument)
if ttl and (allowed == 1 or isShadow) then
  if state then write(key, p, state, keepMs(ttl)) else redis.call('DEL', key) end
end
return {now, allowed, limit, remaining, resetAt, retryAfterMs}
