local key = KEYS[1]
local stored = read(key, p, now)
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl = operation(p, stored, now, cost, argument)
if ttl and (allowed == 1 or isShadow) then
  if state then
    local px = keepMs(ttl)
    write(key, p, state, px)
  else
    redis.call('DEL', key)
  end
end
return {now, allowed, limit, remaining, resetAt, retryAfterMs}
