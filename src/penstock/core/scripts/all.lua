-- Nothing is written before all steps are decided, and nothing at all if one denies that is no
-- shadow. A key that is named twice is decided on what its earlier step left. If the request is
-- denied, the steps that would have admitted it are answered with what is there: as a check of cost
-- 0 is, on a state that is read again, because a check may change the one that it is given.
--
-- Functions and tables are made anew by every call, and each costs a server about as much as a read
-- of a key. So there are few of them; and a table that grows is made anew each time, so they have
-- room for three steps.

-- Where a key is named first; and by that place its state, false if there is none, the number of what
-- it is a state of, and if it is to be written the parameters that it was decided by last and the ttl.
local places, states, files = {}, {nil, nil, nil}, {nil, nil, nil}
local parameters, ttls = {nil, nil, nil}, {nil, nil, nil}
-- By the place of a step, its parameters, if it is answered with what is there in a denied request.
local standing = {nil, nil, nil}
local reply = {now, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil}
-- Where the next step begins, the next record, and the next answer.
local steps, at, recordAt, answerAt, admitted = cjson.decode(ARGV[2]), 1, 3, 2, true
for place = 1, #KEYS do
  local key, kind, cost = KEYS[place], steps[at], steps[at + 1]
  local home, p, argument, file, isShadow, stands = places[key], nil, nil, nil, nil, nil
  local stored = home and states[home]
  local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl
  -- One branch for each kind of step.
  if not allowed then return {now} end
  if not home then
    home, places[key], states[place], files[place] = place, place, stored or false, file
  end
  if ttl then states[home], parameters[home], ttls[home] = state or false, p, ttl end
  if allowed ~= 1 and not isShadow then admitted = false end
  if stands and allowed == 1 then standing[place] = p end
  reply[answerAt], reply[answerAt + 1], reply[answerAt + 2] = allowed, limit, remaining
  reply[answerAt + 3], reply[answerAt + 4], answerAt = resetAt, retryAfterMs, answerAt + 5
end
for place = 1, admitted and 0 or #KEYS do
  local key, p = KEYS[place], standing[place]
  if p then
    local file, allowed, limit, remaining, resetAt = files[places[key]], nil, nil, nil, nil
    -- One branch for each kind of state that is looked at.
    local first = place * 5 - 3
    reply[first + 1], reply[first + 2], reply[first + 3], reply[first + 4] = limit, remaining, resetAt, 0
  end
end
for place = 1, admitted and #KEYS or 0 do
  local key, state, ttl = KEYS[place], states[place], ttls[place]
  if ttl and state then
    local file, p = files[place], parameters[place]
    local px = keepMs(ttl)
    -- One branch for each kind of state.
  elseif ttl then
    redis.call('DEL', key)
  end
end
return reply
