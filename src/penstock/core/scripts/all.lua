-- Nothing is written before all steps are decided, and nothing at all if one denies that is no
-- shadow. A key that is named twice is decided on what its earlier step left.
--
-- Functions and tables are made anew by every call, and each costs a server about as much as a read
-- of a key; so does an argument that is turned into a number. So there are few of them.

-- Whatever is no check. `try` is one with nothing written, and `look` the decision on a cost that is
-- not spent, with what is there before it.
local function decide(strategy, operation, p, state, cost, argument)
  local more = strategy.more or strategy.beyond()
  strategy.more = more
  if operation == 'try' or (operation == 'look' and not more.look) then
    local function copied(value)
      if type(value) ~= 'table' then return value end
      local copy = {}
      for name, each in pairs(value) do copy[name] = copied(each) end
      return copy
    end
    local allowed, limit, remaining, resetAt, retryAfterMs =
      strategy.check(p, copied(state), now, cost)
    if operation == 'look' then remaining = remaining + allowed * cost end
    return allowed, limit, remaining, resetAt, retryAfterMs
  end
  if operation == 'pause' then return more.pause(p, state, now, argument) end
  return more[operation](p, state, now, cost, argument)
end

-- What is known of a key, by its name: `state`, and if it is to be written `ttl`, with the strategy
-- and the parameters that it was decided by last. A record that the caller has decided on has
-- `text` and `keepFor` instead.
local kept, loaded, steps = {}, {}, cjson.decode(ARGV[2])
-- Where the next step begins, the next record, and the next answer.
local at, recordAt, answerAt, admitted = 1, 3, 2, true
-- With room for the answers of three steps: a table that grows is made anew each time.
local reply = {now, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil}
for place = 1, #KEYS do
  local key, name, operation, cost = KEYS[place], steps[at], steps[at + 1], steps[at + 3]
  local allowed, limit, remaining, resetAt, retryAfterMs = 1, 0, 0, 0, 0
  local isShadow, entry = steps[at + 2] == 1, kept[key]
  if name == 'swap' then
    -- A record that was decided on by the caller: it must not have changed since. The cost is for
    -- how long the new one is kept, -1 if there is none, and 0 if the old one stays.
    if (redis.call('GET', key) or '') ~= ARGV[recordAt] then return {now} end
    if not entry then
      entry = {}
      kept[key] = entry
    end
    if cost ~= 0 then entry.keepFor, entry.text = cost, ARGV[recordAt + 1] end
    allowed, recordAt, at = operation, recordAt + 2, at + 4
  else
    local strategy = loaded[name]
    if not strategy then
      strategy = load(name)
      loaded[name] = strategy
    end
    local p, argument, state, ttl
    if operation == 'check' then at = at + 4 else argument, at = steps[at + 4], at + 5 end
    p, at = strategy.parameters(steps, at)
    FOREIGN = strategy.foreign
    if not entry then
      entry = {strategy = strategy, p = p, state = strategy.read(key, p, now) or false, ttl = false}
      kept[key] = entry
    elseif not entry.strategy or entry.strategy.foreign ~= FOREIGN then
      foreign()
    end
    if operation == 'check' then
      allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
        strategy.check(p, entry.state, now, cost)
    else
      allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
        decide(strategy, operation, p, entry.state, cost, argument)
    end
    if ttl then
      entry.strategy, entry.p, entry.state, entry.ttl = strategy, p, state or false, ttl
    end
  end
  if allowed ~= 1 and not isShadow then admitted = false end
  reply[answerAt], reply[answerAt + 1], reply[answerAt + 2] = allowed, limit, remaining
  reply[answerAt + 3], reply[answerAt + 4], answerAt = resetAt, retryAfterMs, answerAt + 5
end
for place = 1, admitted and #KEYS or 0 do
  local key = KEYS[place]
  local entry = kept[key]
  local keepFor, ttl = entry.keepFor, entry.ttl
  -- A key that is named twice is written once.
  if ttl then entry.ttl = false end
  if keepFor then entry.keepFor = nil end
  if keepFor == -1 or (ttl and not entry.state) then
    redis.call('DEL', key)
  elseif keepFor then
    redis.call('SET', key, entry.text, 'PX', keepFor)
  elseif ttl then
    entry.strategy.write(key, entry.p, entry.state, keepMs(ttl))
  end
end
return reply
