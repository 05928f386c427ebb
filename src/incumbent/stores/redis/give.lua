-- Give: deletes or closes the lease, if the claim holds it. What is only for people may fail (try),
-- so that a server out of memory still lets go.
-- KEYS: the lease, its record, the line of those who wait, and the tombstone of the slot if that is
--       given back too, or those who share the lease
-- ARGV: 1 "incumbent1 <claim> <token> ", or without the token if any will do    2 channel
--       3 ms to stay closed, or 0    4 "incumbent1 <claim> "    5 whom it is reserved for, or ""
--       6 anything, if the grant was not believed: the data may be of another incarnation
--       7 anything, if it is shared
-- Returns 1, or 0 if the claim does not hold it.
local call, try, head = redis.call, redis.pcall, ARGV[1]
local value, time = call('GET', KEYS[1]), call('TIME')
local quiet_until = try('HGET', KEYS[2], FIELD.quiet_until)

if type(quiet_until) == 'string' and quiet_until ~= '0' and value and not ARGV[3]
    and string.sub(value, 1, #head) == head then
  -- The record is there and nobody waits: nearly always.
  call('DEL', KEYS[1])
  try('HSET', KEYS[2], FIELD.ended .. string.match(value, '^%d+', #head + 1),
    time[1] .. ' ' .. time[2])
  call('PUBLISH', ARGV[2], 'given')
  return 1
end

if type(quiet_until) == 'string' and quiet_until ~= '0' and value and ARGV[7] and ARGV[6] == ''
    and string.sub(value, 1, 18) == 'incumbent1 shared ' and #head > 45 then
  -- The same, of one that shares it alone, and was the last that came.
  local token, place = string.match(value, '^%S+ %S+ (%d+) (%d+)')
  if token == string.sub(head, 45, -2) and call('ZCARD', KEYS[4]) == 1
      and try('HDEL', KEYS[2], FIELD.sharer .. string.sub(head, 12, 43)) == 1 then
    call('DEL', KEYS[1], KEYS[4])
    try('HSET', KEYS[2], FIELD.ended .. place, time[1] .. ' ' .. time[2])
    call('PUBLISH', ARGV[2], 'given')
    return 1
  end
end

-- INCLUDE take:line
local channel, closed_ms = ARGV[2], ARGV[3] or '0'
local any_token = ARGV[4] or string.match(head, '^%S+ %S+ ')
local successor, is_believed = ARGV[5] ~= '' and ARGV[5], (ARGV[6] or '') == ''
local sharers = ARGV[7] and KEYS[4]
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now = time[1] .. string.sub('00000' .. time[2], -6)
local turn = try('HGET', KEYS[2], FIELD.turn)
if type(turn) == 'string' then
  turn = read_turn(turn)
else
  turn = nil
end

local function appoint(patience)
  -- Two look if the first stays silent, for one of them may be frozen too: the nearest of another
  -- process, and a little later the last, who has asked most recently.
  turn.watcher, turn.looks = '-', 0
  local function ask(list, ms)
    for _, waiter in ipairs(list) do
      local name = name_of(waiter)
      if inbox_of(waiter) ~= inbox_of(turn.first) and name ~= turn.watcher
          and tell(waiter, 'look', ms) then
        turn.watcher, turn.looks = name, now_ms + patience
        return
      end
    end
  end
  ask(waiters(1, 15), patience)
  ask(waiters(-1, -1), math.ceil(patience * 1.125))
end

local function pass_on(left)
  -- The turn of the first who is there begins in `left` ms: at once, if the lease is free.
  if turn.due == SILENT then call('ZREM', KEYS[3], turn.first) end
  while true do
    local first, since = unpack(try('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES'))
    if not first then
      call('HDEL', KEYS[2], FIELD.turn)
      return
    end
    local patience = heartbeat_of(first)
    -- One that has just come may not listen yet: it looks as soon as it does.
    if tell(first, left > 0 and 'look' or 'turn', left) or since / 1000 + patience >= now_ms then
      if first ~= turn.first then turn.first, turn.overtaken = first, 0 end
      turn.due = now_ms + left + patience
      if left == 0 and (turn.looks <= now_ms or starts_with(turn.watcher, inbox_of(first) .. '/'))
      then
        appoint(patience)
      end
      write_turn(turn)
      return
    end
    -- Its process is gone.
    call('ZREM', KEYS[3], first)
  end
end

local function leave(claim)
  -- `claim` does not wait any more.
  for _, waiter in ipairs(waiters(0, -1)) do
    if starts_with(waiter, claim .. ' ') then
      call('ZREM', KEYS[3], waiter)
      break
    end
  end
  -- Beside those who share the lease there may be room for the next one at once, and who is first
  -- while the name is closed asks when that will end.
  local state = value and string.match(value, '^incumbent1 (%l+) ')
  local left = state and 0 or math.max(0, call('PTTL', KEYS[1]))
  local watched = string.match(turn.watcher, '/(.*)$') == id_of(claim)
  if watched then turn.watcher, turn.looks = '-', 0 end
  if starts_with(turn.first, claim .. ' ') then
    pass_on(left)
  elseif watched then
    -- It was to look for the others.
    if left == 0 and turn.due > now_ms then appoint(turn.due - now_ms) end
    write_turn(turn)
  end
end

local function note_doubt(claim)
  -- Nobody knows whether the take of this claim was granted: it may still be on its way, and is
  -- refused for a minute. Nor is it known whether the server was still that of the asker.
  local over, doubts = string.format('%.0f', now + 60000000), try('HGET', KEYS[2], FIELD.doubts)
  local swept = type(doubts) == 'string' and string.match(doubts, ' (%d+)$')
  -- First: a server out of memory refuses what adds to it, unless a script has written before.
  try('HDEL', KEYS[2], FIELD.incarnation)
  if not swept or swept + 60000000 < tonumber(now) then
    -- Once a minute, so that a server which is overloaded for long does not keep them all.
    local fields = try('HGETALL', KEYS[2])
    for at = 1, #fields, 2 do
      if starts_with(fields[at], FIELD.doubt) and fields[at + 1] < now then
        try('HDEL', KEYS[2], fields[at])
      end
    end
    swept = now
  end
  try('HSET', KEYS[2], FIELD.doubt .. claim, over, FIELD.doubts, over .. ' ' .. swept,
    FIELD.quiet_until, '0')
  if call('PTTL', KEYS[2]) == -1 and not try('HGET', KEYS[2], FIELD.field_count) then
    call('PEXPIRE', KEYS[2], 86400000)
  end
end

local function leave_the_others(claim)
  -- Returns the claim's part in the lease, if it had one that was not over.
  if not value or not starts_with(value, 'incumbent1 shared ') then return end
  local part = try('HGET', KEYS[2], FIELD.sharer .. claim)
  local token = string.match(head, '^%S+ %S+ (%d+)') or part and string.match(part, '^%d+')
  local ends = token and call('ZSCORE', sharers, claim .. ' ' .. token)
  if not ends then return end
  call('ZREM', sharers, claim .. ' ' .. token)
  try('HDEL', KEYS[2], FIELD.sharer .. claim)
  call('ZREMRANGEBYSCORE', sharers, '-inf', now_ms)
  local last, until_ms = unpack(call('ZRANGE', sharers, -1, -1, 'WITHSCORES'))
  if last then
    -- Another value, for those who wait see by it that something changed; with the words of one that
    -- stays.
    local stays = try('HGET', KEYS[2], FIELD.sharer .. string.sub(last, 1, #claim)) or value
    local which, who = string.match(stays, '(%d+ %d+) %d+( %d+ %S*)')
    call('SET', KEYS[1], 'incumbent1 shared ' .. which .. ' ' .. now .. who
      .. string.match(value, ' %d+$'), 'PX', string.format('%.0f', until_ms - now_ms))
  else
    call('DEL', KEYS[1])
  end
  return tonumber(ends) > now_ms and (part or 'incumbent1 0')
end

local is_freed = false
if KEYS[4] and not sharers then
  local used = call('GET', KEYS[4])
  is_freed = used and starts_with(used, any_token) and call('DEL', KEYS[4])
end
if not is_believed and type(quiet_until) == 'string' then
  try('HDEL', KEYS[2], FIELD.incarnation)
  try('HSET', KEYS[2], FIELD.quiet_until, '0')
end
if head == any_token then note_doubt(string.sub(head, 12, -2)) end

local part = sharers and leave_the_others(string.sub(any_token, 12, -2))
if part then
  try('HSET', KEYS[2], FIELD.ended .. string.match(part, ' (%d+)'), time[1] .. ' ' .. time[2])
  if turn then pass_on(0) end
  call('PUBLISH', channel, 'given')
  return 1
end
if not value or not starts_with(value, head) then
  if is_freed then call('PUBLISH', channel, '') end
  if turn then leave(string.sub(any_token, 12, -2)) end
  return 0
end

if closed_ms ~= '0' then
  local state, rest = 'closed ', string.sub(value, #any_token + 1)
  if successor then
    -- The name stands where the meta was.
    state, rest = 'reserved ', string.match(rest, '^%S+ %S+ %S+ %S+ %S* ') .. successor
  end
  call('SET', KEYS[1], 'incumbent1 ' .. state .. rest, 'PX', closed_ms)
else
  call('DEL', KEYS[1])
end
local token, place = string.match(value, '^%S+ %S+ (%d+) (%d+)')
if try('HSET', KEYS[2], FIELD.ended .. place, time[1] .. ' ' .. time[2]) == 1
    and not call('HGET', KEYS[2], FIELD.token) then
  -- The record had expired during a long holding: it must not come back without an end.
  try('HSET', KEYS[2], FIELD.token, token, FIELD.place, place)
  if not call('HGET', KEYS[2], FIELD.field_count) then call('PEXPIRE', KEYS[2], 86400000) end
end
if turn then pass_on(0) end
-- Those in line are told themselves: this is for all who only look on, as a successor does too.
call('PUBLISH', channel, successor and '' or 'given')
return 1
