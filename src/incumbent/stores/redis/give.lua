-- Give. Deletes or closes only what the claim holds; what is only for people may fail (pcall), so
-- that a server out of memory still lets go.
-- KEYS: the lease, its companion, the line of those who wait (see take), and the tombstone of the
--       slot if that is given back too
-- ARGV: 1 "incumbent1 <claim> <token> ", or without the token if any will do   2 channel
--       3 ms to stay closed, or 0    4 "incumbent1 <claim> "   5 whom it is reserved for, if anybody
local call, try, head = redis.call, redis.pcall, ARGV[1]
local value, time, calm = call('GET', KEYS[1]), call('TIME'), try('HGET', KEYS[2], 'x')

if type(calm) == 'string' and calm ~= '0' and value and not ARGV[3]
    and string.sub(value, 1, #head) == head then
  -- The companion is there and nobody waits: nearly always.
  call('DEL', KEYS[1])
  try('HSET', KEYS[2], 'e' .. string.match(value, '^%d+', #head + 1), time[1] .. ' ' .. time[2])
  call('PUBLISH', ARGV[2], 'given')
  return 1
end

local freed = false
if KEYS[4] then
  local used = call('GET', KEYS[4])
  if used and string.sub(used, 1, #ARGV[4]) == ARGV[4] then freed = call('DEL', KEYS[4]) end
end

local turn, pass_on = redis.pcall('HGET', KEYS[2], 'q')
if type(turn) == 'string' then
  local at = time[1] * 1000 + math.floor(time[2] / 1000)

  local function tell(inbox, said)
    -- True if somebody heard it.
    local heard = redis.pcall('PUBLISH', 'incumbent:to:' .. inbox, said)
    return type(heard) == 'number' and heard > 0
  end

  local function turn_of(waiter, till, overtaken)
    return string.format('%.0f ', till) .. overtaken .. ' ' .. waiter
  end

  local function hand_over(waiter, second)
    -- Grant it at once, as take does, if its process is there to hear of it: then true.
    -- It may be frozen: unless it renews within its heartbeat, the second in line comes.
    local claim, inbox, most, keep, rest = string.match(waiter, '^(%S+) (%S+) %a (%d+) h (%d+)(.*)$')
    local kept = claim and redis.pcall('HMGET', KEYS[2], 't', 'n', 'k')
    if not claim or not kept[1] or kept[3] then return end
    local now = time[1] .. string.sub('00000' .. time[2], -6)
    local token, ttl = now, math.min(most, string.match(rest, '%d+'))
    if kept[1] >= now or #kept[1] ~= #now then
      token = string.format('%.0f', math.max(now, kept[1] + 1))
    end
    local place = (kept[2] + 1) % 20
    local past = token .. ' ' .. now .. ' - ' .. string.match(rest, '^ %d+ (%S*)')
    local new = 'incumbent1 ' .. claim .. ' ' .. token .. ' ' .. place .. ' ' .. now .. rest
    local after, its_inbox, patience
    if second then
      after, its_inbox, patience = string.match(second, '^(%S+) (%S+) %S+ (%d+)')
    end
    local q = second and turn_of(second, at + ttl + patience, '0') or turn
    -- Nobody may believe what a server out of memory did not write: told last.
    local noted = redis.pcall('HSET', KEYS[2], 't', token, 'n', place, 'h' .. place, past, 'q', q)
    if type(noted) ~= 'number' then return end
    local set = redis.pcall('SET', KEYS[1], new, 'NX', 'PX', ttl)
    if not set or set.err then return end
    local id = string.sub(claim, 1, 16)
    -- The server writes first to whom it was told to write last.
    if second then tell(its_inbox, 'look ' .. string.sub(after, 1, 16) .. ' ' .. ttl) end
    if not tell(inbox, 'have ' .. id .. ' ' .. ttl .. ' ' .. claim .. ' ' .. token) then
      call('DEL', KEYS[1])
      redis.pcall('HSET', KEYS[2], 'n', kept[2], 'q', turn)
      redis.pcall('HDEL', KEYS[2], 'h' .. place)
      return
    end
    call('PEXPIRE', KEYS[2], keep)
    call('ZREM', KEYS[3], waiter)
    if not second then call('HDEL', KEYS[2], 'q') end
    return true
  end

  pass_on = function(gone, closing)
    -- Whose turn is it? `gone`: "<claim> " of one that does not wait any more.
    local overtaken, before = string.match(turn, '^%d+ (%d+) (.*)$')
    local left, since = gone and call('PTTL', KEYS[1]) or 0, false
    -- Nearly always it is handed to the first.
    local line = redis.pcall('ZRANGE', KEYS[3], 0, gone and -1 or 1)
    if line.err or not gone and not closing and line[1] and hand_over(line[1], line[2]) then return end
    if gone then
      for place, waiter in ipairs(line) do
        if string.sub(waiter, 1, #gone) == gone then
          call('ZREM', KEYS[3], table.remove(line, place))
          break
        end
      end
      -- It was not the first: nothing else has changed.
      if string.sub(before, 1, #gone) ~= gone then return end
    else
      line = call('ZRANGE', KEYS[3], 0, 15)
    end
    for place, waiter in ipairs(line) do
      local claim, inbox, most = string.match(waiter, '^(%S+) (%S+) %S+ (%d+)')
      local id = string.sub(claim, 1, 16)
      if since then
        -- The next one looks if the first stays silent.
        tell(inbox, 'look ' .. id .. ' ' .. since)
        return
      elseif not gone and not closing and place > 1 and hand_over(waiter, line[place + 1]) then
        return
      elseif tell(inbox, left > 0 and 'look ' .. id .. ' ' .. left or 'turn ' .. id .. ' 0')
          or call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] / 1000 + most >= at then
        -- One that has just come may not listen yet: it looks as soon as it does.
        since = math.max(0, left) + most
        local q = turn_of(waiter, at + since, waiter == before and overtaken or '0')
        redis.pcall('HSET', KEYS[2], 'q', q)
        if left > 0 then return end
      else
        -- Its process is gone.
        call('ZREM', KEYS[3], waiter)
      end
    end
    if not since then call('HDEL', KEYS[2], 'q') end
  end
end

if not value or string.sub(value, 1, #head) ~= head then
  if freed then call('PUBLISH', ARGV[2], '') end
  if pass_on and ARGV[4] then pass_on(string.sub(ARGV[4], 12)) end
  return 0
end

if ARGV[3] and ARGV[3] ~= '0' then
  local word, rest = 'closed ', string.sub(value, #ARGV[4] + 1)
  if ARGV[5] then
    -- The name stands where the meta was.
    word, rest = 'reserved ', string.match(rest, '^%S+ %S+ %S+ %S+ %S* ') .. ARGV[5]
  end
  call('SET', KEYS[1], 'incumbent1 ' .. word .. rest, 'PX', ARGV[3])
else
  call('DEL', KEYS[1])
end
-- Without the token, the place in the history comes after one more word.
local place
if ARGV[3] then place = string.match(value, '^%S+ %S+ %d+ (%d+)')
else place = string.match(value, '^%d+', #head + 1) end
if redis.pcall('HSET', KEYS[2], 'e' .. place, time[1] .. ' ' .. time[2]) == 1
    and call('HLEN', KEYS[2]) == 1 then
  -- The companion had expired during a long holding: it must not come back without an end.
  redis.pcall('HSET', KEYS[2], 't', string.match(value, '^%S+ %S+ (%d+)'), 'n', place)
  call('PEXPIRE', KEYS[2], 86400000)
end
if pass_on then pass_on(false, ARGV[3] and ARGV[3] ~= '0') end
-- Those in line are told themselves: this is for all who only look on, as a successor does too.
call('PUBLISH', ARGV[2], ARGV[5] and '' or 'given')
return 1
