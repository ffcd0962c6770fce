-- Nothing is written before all steps are decided, and nothing at all if one denies that is no
-- shadow. A key that is named twice is decided on what its earlier step left.
--
-- Functions and tables are made anew by every call, and each costs a server about as much as a read
-- of a key: so there are few of them.

-- What the first argument of a step says: the strategy, the operation, whether it is a shadow, and
-- whether the operation has an argument. Most steps say what one before them has said.
local heads, loaded = {}, {}
local function headOf(text)
  local name, operation, shadow = match(text, '^(%S+) (%S+) ([01])$')
  local strategy = loaded[name] or load(name)
  loaded[name] = strategy
  local head = {
    strategy = strategy, operation = operation, shadow = shadow == '1',
    alone = operation == 'check' or operation == 'look' or operation == 'try'
      or operation == 'charge' or operation == 'reclaim',
  }
  heads[text] = head
  return head
end

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

-- What is known of a key, by its name and in the order of the steps: `state`, and if it is to be
-- written `ttl`, with the strategy and the parameters that it was decided by last. A record that
-- the caller has decided on has `text` and `keepFor` instead.
local kept, order, known = {}, {}, 0
local reply, admitted, at = {now}, true, 2
for place = 1, #KEYS do
  local key, text, cost = KEYS[place], ARGV[at], tonumber(ARGV[at + 1])
  local entry = kept[key]
  if text == 'swap' then
    -- A record that was decided on by the caller: it must not have changed since.
    if (call('GET', key) or '') ~= ARGV[at + 3] then return {now} end
    if not entry then
      entry, known = {key = key}, known + 1
      kept[key], order[known] = entry, entry
    end
    if ARGV[at + 2] ~= '0' then entry.keepFor, entry.text = ARGV[at + 2], ARGV[at + 4] end
    if cost ~= 1 then admitted = false end
    reply[place + 1], at = 0, at + 5
  else
    local head = heads[text] or headOf(text)
    local strategy, operation, argument, p = head.strategy, head.operation, nil, nil
    if not head.alone then argument, at = ARGV[at + 2], at + 1 end
    p, at = strategy.parameters(at + 2)
    FOREIGN = strategy.foreign
    if not entry then
      local state = strategy.read(key, p, now) or false
      entry, known = {key = key, strategy = strategy, p = p, state = state, ttl = false}, known + 1
      kept[key], order[known] = entry, entry
    elseif not entry.strategy or entry.strategy.foreign ~= FOREIGN then
      foreign()
    end
    local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl
    if operation == 'check' then
      allowed, limit, remaining, resetAt, retryAfterMs, state, ttl =
        strategy.check(p, entry.state, now, cost)
    else
      -- A number; `#` and how many texts there are behind the parameters; or a text, the id of a
      -- slot, which looks like neither.
      local count = argument and match(argument, '^#(%d+)$')
      if count then
        argument = {}
        for number = 1, tonumber(count) do argument[number], at = ARGV[at], at + 1 end
      end
      allowed, limit, remaining, resetAt, retryAfterMs, state, ttl = decide(
        strategy, operation, p, entry.state, cost, argument and tonumber(argument) or argument
      )
    end
    if ttl then
      entry.strategy, entry.p, entry.state, entry.ttl = strategy, p, state or false, ttl
    end
    if allowed ~= 1 and not head.shadow then admitted = false end
    reply[place + 1] = {allowed, limit, remaining, resetAt, retryAfterMs}
  end
end
if admitted then
  for place = 1, known do
    local entry = order[place]
    local key, keepFor = entry.key, entry.keepFor
    if keepFor == '-1' then
      call('DEL', key)
    elseif keepFor then
      call('SET', key, entry.text, 'PX', keepFor)
    elseif entry.ttl then
      if entry.state then
        entry.strategy.write(key, entry.p, entry.state, keepMs(entry.ttl))
      else
        call('DEL', key)
      end
    end
  end
end
return reply
