-- A check may change the state that it is given, and a look writes nothing: it is decided on a copy.
local function copied(value)
  if type(value) ~= 'table' then return value end
  local copy = {}
  for name, each in pairs(value) do copy[name] = copied(each) end
  return copy
end

local function trying(check)
  return function(p, state, now, cost)
    local allowed, limit, remaining, resetAt, retryAfterMs = check(p, copied(state), now, cost)
    if allowed == 1 then
      -- Another limit has denied the request: what is there, with nothing charged.
      allowed, limit, remaining, resetAt, retryAfterMs = check(p, copied(state), now, 0)
      allowed, retryAfterMs = 1, 0
    end
    return allowed, limit, remaining, resetAt, retryAfterMs
  end
end

-- The decision on a cost that is not spent, with what is there before it. A cost of 0 never denies.
local function looking(check)
  return function(p, state, now, cost)
    local allowed, limit, remaining, resetAt, retryAfterMs = check(p, copied(state), now, cost)
    if cost == 0 then allowed, retryAfterMs = 1, 0 end
    return allowed, limit, remaining + allowed * cost, resetAt, retryAfterMs
  end
end
