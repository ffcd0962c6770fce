-- Nothing is written before all steps are decided, and nothing at all if one denies that is no
-- shadow. A key that is named twice is decided on what its earlier step left.
local function copied(state)
  if type(state) ~= 'table' then return state end
  local copy = {}
  for name, value in pairs(state) do copy[name] = copied(value) end
  return copy
end

local states, kinds, writes, written = {}, {}, {}, {}
local loaded = {}
local function strategyOf(name)
  local strategy = loaded[name]
  if not strategy then
    local foreignText, parameters, constants
    strategy, foreignText, parameters, constants = load(name)
    strategy.foreign, strategy.parameters, strategy.constants = foreignText, parameters, constants
    loaded[name] = strategy
  end
  return strategy
end

-- The decision on a cost that is not spent, with what is there before it.
local function look(strategy, p, state, cost)
  if strategy.look then return strategy.look(p, state, now, cost) end
  local allowed, limit, remaining, resetAt, retryAfterMs =
    strategy.check(p, copied(state), now, cost)
  return allowed, limit, remaining + allowed * cost, resetAt, retryAfterMs
end

-- A record that was decided on by the caller: it must not have changed since.
local function swap(key, expected, keepFor, text)
  if (call('GET', key) or '') ~= expected then return false end
  if keepFor == '-1' then
    writes[key] = {delete = true}
  elseif keepFor ~= '0' then
    writes[key] = {text = text, keepFor = keepFor}
  end
  if writes[key] then written[#written + 1] = key end
  return true
end

local function decide(strategy, operation, p, state, cost, argument)
  if operation == 'look' then return look(strategy, p, state, cost) end
  if operation == 'tell' then return 1, now, 0, 0, 0 end
  if operation == 'try' then
    local allowed, limit, remaining, resetAt, retryAfterMs =
      strategy.check(p, copied(state), now, cost)
    return allowed, limit, remaining, resetAt, retryAfterMs
  end
  if operation == 'pause' then return strategy.pause(p, state, now, argument) end
  return strategy[operation](p, state, now, cost, argument)
end

local reply, size, admitted = {now}, 1, true
local at = 2
for place = 1, #KEYS do
  local key, name, operation = KEYS[place], ARGV[at], ARGV[at + 1]
  local cost, shadow = tonumber(ARGV[at + 2]), ARGV[at + 3] == '1'
  local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl = cost, 0, 0, 0, 0, nil, nil
  if operation == 'swap' then
    if not swap(key, ARGV[at + 5], ARGV[at + 4], ARGV[at + 6]) then return {now} end
    at = at + 7
  else
    -- A number, or the id of a slot, which does not look like one.
    local argument = tonumber(ARGV[at + 4]) or ARGV[at + 4]
    local strategy = strategyOf(name)
    local p = {}
    for field, value in pairs(strategy.constants) do p[field] = value end
    at = at + 5
    local parameters = strategy.parameters
    for field = 1, #parameters do
      p[parameters[field]], at = tonumber(ARGV[at]), at + 1
    end
    FOREIGN = strategy.foreign
    if states[key] == nil then
      states[key], kinds[key] = strategy.read(key, p, now) or false, FOREIGN
    elseif kinds[key] ~= FOREIGN then
      foreign()
    end
    allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
      decide(strategy, operation, p, states[key], cost, argument)
    if ttl then
      if not writes[key] then written[#written + 1] = key end
      states[key] = state or false
      writes[key] = {strategy = strategy, p = p, ttl = ttl, delete = not state}
    end
  end
  if allowed ~= 1 and not shadow then admitted = false end
  reply[size + 1], reply[size + 2], reply[size + 3] = allowed, limit, remaining
  reply[size + 4], reply[size + 5] = resetAt, retryAfterMs
  size = size + 5
end
if admitted then
  for place = 1, #written do
    local key = written[place]
    local write = writes[key]
    if write.delete then
      call('DEL', key)
    elseif write.text then
      call('SET', key, write.text, 'PX', write.keepFor)
    else
      write.strategy.write(key, write.p, states[key], keepMs(write.ttl))
    end
  end
end
return reply
