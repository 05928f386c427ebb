-- Give. Deletes or closes only what the claim holds; what is only for people may fail (pcall), so
-- that a server out of memory still lets go.
-- KEYS: the lease, its companion (its fields are listed in take), the line of those who wait, and
--       the tombstone of the slot if that is given back too
-- ARGV: 1 "incumbent2 <claim> <token> ", or without the token if any will do   2 channel
--       3 ms to stay closed, or 0    4 "incumbent2 <claim> "   5 whom it is reserved for, or ""
--       6 anything, if the grant was not believed: the data may be of another incarnation
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

local successor, freed = ARGV[5] ~= '' and ARGV[5], false
if KEYS[4] then
  local used = call('GET', KEYS[4])
  if used and string.sub(used, 1, #ARGV[4]) == ARGV[4] then freed = call('DEL', KEYS[4]) end
end

local turn, pass_on, leave = redis.pcall('HGET', KEYS[2], 'q')
if type(turn) == 'string' then
  local at = time[1] * 1000 + math.floor(time[2] / 1000)
  local due, overtaken, watcher, looks, before = string.match(turn, '^(%d+) (%d+) (%S+) (%d+) (.*)$')
  due, overtaken = tonumber(due) or 0, tonumber(overtaken) or 0
  watcher, looks, before = watcher or '-', tonumber(looks) or 0, before or ''

  local function words(waiter)
    local claim, inbox, patience = string.match(waiter, '^(%S+) (%S+) %S+ (%d+)')
    return string.sub(claim, 1, 16), inbox, tonumber(patience)
  end
  local function tell(waiter, what, ms)
    -- True if somebody heard it.
    local id, inbox = words(waiter)
    local said = string.format('%s %s %.0f', what, id, ms)
    local heard = redis.pcall('PUBLISH', 'incumbent:to:' .. inbox, said)
    return type(heard) == 'number' and heard > 0
  end
  local function note(first)
    local q = string.format('%.0f %.0f %s %.0f ', due, overtaken, watcher, looks) .. first
    redis.pcall('HSET', KEYS[2], 'q', q)
  end
  local function appoint(first, patience)
    -- Two look if the first stays silent, for one of them may be frozen too: the nearest of another
    -- process, and a little later the last, who has asked most recently.
    local _, own = words(first)
    watcher, looks = '-', 0
    local function ask(waiters, ms)
      for _, waiter in ipairs(waiters) do
        local id, inbox = words(waiter)
        local who = inbox .. '/' .. id
        if inbox ~= own and who ~= watcher and tell(waiter, 'look', ms) then
          watcher, looks = who, at + patience
          return
        end
      end
    end
    local next = redis.pcall('ZRANGE', KEYS[3], 1, 15)
    local last = #next < 15 and { next[#next] } or redis.pcall('ZRANGE', KEYS[3], -1, -1)
    ask(next, patience)
    ask(last, math.ceil(patience * 1.125))
  end

  pass_on = function(left)
    -- The turn of the first who is there begins in `left` ms: at once, if the lease is free.
    while true do
      local first, since = unpack(redis.pcall('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES'))
      if not first then
        call('HDEL', KEYS[2], 'q')
        return
      end
      local _, inbox, patience = words(first)
      -- One that has just come may not listen yet: it looks as soon as it does.
      if tell(first, left > 0 and 'look' or 'turn', left) or since / 1000 + patience >= at then
        due = at + left + patience
        if first ~= before then overtaken = 0 end
        if left == 0 and (looks <= at or string.match(watcher, '^[^/]+') == inbox) then
          appoint(first, patience)
        end
        note(first)
        return
      end
      -- Its process is gone.
      call('ZREM', KEYS[3], first)
    end
  end

  leave = function(gone)
    -- `gone` ("<claim> ") does not wait any more.
    for _, waiter in ipairs(redis.pcall('ZRANGE', KEYS[3], 0, -1)) do
      if string.sub(waiter, 1, #gone) == gone then
        call('ZREM', KEYS[3], waiter)
        break
      end
    end
    local left, watched = math.max(0, call('PTTL', KEYS[1])), watcher
    if string.match(watcher, '/(.*)$') == string.sub(gone, 1, 16) then watcher, looks = '-', 0 end
    if string.sub(before, 1, #gone) == gone then
      pass_on(left)
    elseif watched ~= watcher then
      -- It was to look for the others.
      if left == 0 and due > at then appoint(before, due - at) end
      note(before)
    end
  end
end

if ARGV[6] and type(calm) == 'string' then
  try('HDEL', KEYS[2], 'i')
  try('HSET', KEYS[2], 'x', '0')
end

if head == ARGV[4] then
  -- Nobody knows whether the take of this claim was granted: it may still be on its way, and is
  -- refused for a minute. Nor is it known whether the server was still that of the asker.
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  local over, doubts = string.format('%.0f', now + 60000000), try('HGET', KEYS[2], 'd')
  local swept = type(doubts) == 'string' and string.match(doubts, ' (%d+)$')
  -- First: a server out of memory refuses what adds to it, unless a script has written before.
  try('HDEL', KEYS[2], 'i')
  if not swept or swept + 60000000 < tonumber(now) then
    -- Once a minute, so that a server which is overloaded for long does not keep them all.
    local fields = try('HGETALL', KEYS[2])
    for at = 1, #fields, 2 do
      if string.sub(fields[at], 1, 2) == 'd:' and fields[at + 1] < now then
        try('HDEL', KEYS[2], fields[at])
      end
    end
    swept = now
  end
  try('HSET', KEYS[2], 'd:' .. string.sub(head, 12, -2), over, 'd', over .. ' ' .. (swept or now),
    'x', '0')
  if call('PTTL', KEYS[2]) == -1 and not try('HGET', KEYS[2], 'k') then
    call('PEXPIRE', KEYS[2], 86400000)
  end
end

if not value or string.sub(value, 1, #head) ~= head then
  if freed then call('PUBLISH', ARGV[2], '') end
  if leave and ARGV[4] then leave(string.sub(ARGV[4], 12)) end
  return 0
end

if ARGV[3] and ARGV[3] ~= '0' then
  local word, rest = 'closed ', string.sub(value, #ARGV[4] + 1)
  if successor then
    -- The name stands where the meta was.
    word, rest = 'reserved ', string.match(rest, '^%S+ %S+ %S+ %S+ %S* ') .. successor
  end
  call('SET', KEYS[1], 'incumbent2 ' .. word .. rest, 'PX', ARGV[3])
else
  call('DEL', KEYS[1])
end
-- Without the token, the place in the history comes after one more word.
local place
if ARGV[3] then place = string.match(value, '^%S+ %S+ %d+ (%d+)')
else place = string.match(value, '^%d+', #head + 1) end
if try('HSET', KEYS[2], 'e' .. place, time[1] .. ' ' .. time[2]) == 1
    and not call('HGET', KEYS[2], 't') then
  -- The companion had expired during a long holding: it must not come back without an end.
  try('HSET', KEYS[2], 't', string.match(value, '^%S+ %S+ (%d+)'), 'n', place)
  if not call('HGET', KEYS[2], 'k') then call('PEXPIRE', KEYS[2], 86400000) end
end
if pass_on then pass_on(0) end
-- Those in line are told themselves: this is for all who only look on, as a successor does too.
call('PUBLISH', ARGV[2], successor and '' or 'given')
return 1
