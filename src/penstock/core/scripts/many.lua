-- Nothing is written before all keys are decided: a key that holds something foreign charges nobody.
local states, ttls, admitted, count = {}, {}, {}, 0
local runs, run = {}, -2
for place = 1, #KEYS do
  local key = KEYS[place]
  local state = states[key]
  if state == nil then
    local stored = read(key, p, now)
    state = stored or false
  end
  local allowed, limit, remaining, resetAt, retryAfterMs, after, ttl = check(p, state, now, cost)
  if allowed == 1 then
    if not ttls[key] then admitted[count + 1], count = key, count + 1 end
    state, ttls[key] = after, ttl
  end
  states[key] = state
  if runs[run + 1] ~= remaining or runs[run + 2] ~= resetAt or runs[run + 3] ~= retryAfterMs then
    run = run + 4
    runs[1], runs[run] = limit, 0
    runs[run + 1], runs[run + 2], runs[run + 3] = remaining, resetAt, retryAfterMs
  end
  runs[run] = runs[run] + 1
end
for place = 1, count do
  local key = admitted[place]
  local px = keepMs(ttls[key])
  write(key, p, states[key], px)
end
return runs
