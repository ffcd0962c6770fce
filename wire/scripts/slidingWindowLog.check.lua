-- slidingWindowLog.check
-- KEYS  1 key
-- ARGV  1 now, 2 windowMs, 3 limit, 4 cost
-- reply allowed, limit, remaining, resetAt, retryAfterMs
-- state sorted set: one member per accepted unit, score its ms
local MARGIN_MS, MAX_MARGIN_MS, MAX_STORED_MS, FOREIGN = 60000, 86400000, 140737488355328, 'WRONGTYPE not the state of a slidingWindowLog'
local now, cost = ARGV[1] + 0, ARGV[4] + 0
local p = {windowMs = ARGV[2] + 0, limit = ARGV[3] + 0}
local time = redis.call('TIME')
local serverNow = time[1] * 1000 + math.floor(time[2] / 1000)
local ahead = 0
if now == 0 then
  now = serverNow
elseif now > serverNow then
  ahead = now - serverNow
end
local named, name = nil, nil
local key = KEYS[1]
local stored
do
  local edge, gone, count, oldest = now - p.windowMs, 0, redis.call('ZCARD', key), nil
  local paused = false
  if count > 0 then
    local stampAt5_1, stampAt5_2
    do
      local rank = 0
      local unit = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
      local stamp = unit[2] + 0
      if stamp < 0 or stamp > MAX_STORED_MS or stamp % 1 ~= 0 then error(FOREIGN, 0) end
      stampAt5_1, stampAt5_2 = stamp, unit[1]
    end
    local stamp, name = stampAt5_1, stampAt5_2
    oldest = stamp
    if stamp > edge and name == 'pause' then
      count, paused = count - 1 + 2 ^ 52, 1
    elseif stamp <= edge then
      gone = redis.call('ZCOUNT', key, '-inf', edge)
      count, oldest = count - gone, nil
      if count > 0 then
        local first
        do
          local rank = gone
          local unit = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
          local stamp = unit[2] + 0
          if stamp < 0 or stamp > MAX_STORED_MS or stamp % 1 ~= 0 then error(FOREIGN, 0) end
          first = stamp, unit[1]
        end
        oldest = first
      end
    end
  end
  stored = { key = key, edge = edge, gone = gone, count = count, oldest = oldest, newest = false, free = false, changes = false, paused = paused, }
end
local check4_1, check4_2, check4_3, check4_4, check4_5, check4_6, check4_7
do
  local log = stored
  local limit, windowMs, count = p.limit, p.windowMs, log.count
  local resetAt = math.ceil((log.oldest or now) + windowMs)
  local allowed, retry, state, ttl = 1, windowMs, nil, nil
  if count + cost > limit then
    if count > 0 then
      local k = math.min(math.max(count + cost - limit, 1), count)
      local stampOf2_1
      do
        local log, k = log, k
        local rank, found, stamps = log.gone + k, nil, {}
        if log.paused and k <= 2 ^ 52 then
          found = log.oldest
        elseif log.paused then
          rank = rank + log.paused - 2 ^ 52
        end
        for stamp in pairs(not found and log.changes or {}) do stamps[#stamps + 1] = stamp end
        table.sort(stamps)
        for place = 1, #stamps do
          local stamp = stamps[place]
          if rank <= redis.call('ZCOUNT', log.key, '-inf', string.format('(%.0f', stamp)) then break end
          rank = rank - log.changes[stamp]
          if rank <= redis.call('ZCOUNT', log.key, '-inf', stamp) then
            found = stamp
            break
          end
        end
        if not found then
          local stampAt1_1
          do
            local key, rank = log.key, rank - 1
            local unit = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
            local stamp = unit[2] + 0
            if stamp < 0 or stamp > MAX_STORED_MS or stamp % 1 ~= 0 then error(FOREIGN, 0) end
            stampAt1_1 = stamp, unit[1]
          end
          local stamp = stampAt1_1
          found = stamp
        end
        stampOf2_1 = found
      end
      local stamp = stampOf2_1
      retry = math.max(1, math.ceil(stamp + windowMs - now))
    end
    allowed = 0
  else
    retry, count = 0, count + cost
    do
      local log, units = log, cost
      if not log.newest then
        log.newest, log.free = now, now
        if log.count > 0 and redis.call('ZCOUNT', log.key, now, '+inf') > 0 then
          local newest
          do
            local log, k = log, log.count
            local rank, found, stamps = log.gone + k, nil, {}
            if log.paused and k <= 2 ^ 52 then
              found = log.oldest
            elseif log.paused then
              rank = rank + log.paused - 2 ^ 52
            end
            for stamp in pairs(not found and log.changes or {}) do stamps[#stamps + 1] = stamp end
            table.sort(stamps)
            for place = 1, #stamps do
              local stamp = stamps[place]
              if rank <= redis.call('ZCOUNT', log.key, '-inf', string.format('(%.0f', stamp)) then break end
              rank = rank - log.changes[stamp]
              if rank <= redis.call('ZCOUNT', log.key, '-inf', stamp) then
                found = stamp
                break
              end
            end
            if not found then
              local stampAt3_1
              do
                local key, rank = log.key, rank - 1
                local unit = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
                local stamp = unit[2] + 0
                if stamp < 0 or stamp > MAX_STORED_MS or stamp % 1 ~= 0 then error(FOREIGN, 0) end
                stampAt3_1 = stamp, unit[1]
              end
              local stamp = stampAt3_1
              found = stamp
            end
            newest = found
          end
          log.newest, log.free = math.max(now, newest), false
        end
      end
      log.oldest = log.oldest or log.newest
      do
        local log, stamp = log, log.newest
        if log.changes then
          log.changes[stamp] = (log.changes[stamp] or 0) + units
        else
          log.changes = {[stamp] = units}
        end
        log.count = log.count + units
      end
      state, ttl = log, log.newest - now + p.windowMs
    end
  end
  check4_1, check4_2, check4_3, check4_4, check4_5, check4_6, check4_7 = allowed, limit, math.max(0, limit - count), resetAt, retry, state, ttl
end
local allowed, limit, remaining, resetAt, retryAfterMs, state, ttl = check4_1, check4_2, check4_3, check4_4, check4_5, check4_6, check4_7
if allowed == 1 then
  local px
  do
    local margin = ttl
    if margin < MARGIN_MS then margin = MARGIN_MS end
    if margin > MAX_MARGIN_MS then margin = MAX_MARGIN_MS end
    px = ahead + ttl + margin
  end
  do
    local log = state
    if log.gone > 0 then redis.call('ZREMRANGEBYSCORE', key, '-inf', log.edge) end
    if log.paused == 0 then redis.call('ZADD', key, log.oldest, 'pause') end
    for stamp, units in pairs(log.changes or {}) do
      while units < 0 do
        local some = math.min(-units, 500)
        redis.call('ZREM', key, unpack(redis.call('ZRANGEBYSCORE', key, stamp, stamp, 'LIMIT', 0, some)))
        units = units + some
      end
      local n = 0
      if units > 0 and stamp == log.free then
        if named ~= stamp then named, name = stamp, string.format('u%.0f.0', stamp) end
        n, units = 1, units - redis.call('ZADD', key, 'NX', stamp, name)
      elseif units > 0 then
        n = redis.call('ZCOUNT', key, stamp, stamp)
      end
      while units > 0 do
        local chunk = {}
        for i = 1, math.min(units, 500) do
          chunk[2 * i - 1], chunk[2 * i] = stamp, string.format('u%.0f.%.0f', stamp, n)
          n = n + 1
        end
        units = units - redis.call('ZADD', key, 'NX', unpack(chunk))
      end
    end
    redis.call('PEXPIRE', key, px)
  end
end
return {allowed, limit, remaining, resetAt, retryAfterMs}
