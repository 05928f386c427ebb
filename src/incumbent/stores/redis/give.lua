-- Give: deletes or closes the lease, if the claim holds it; removes the claim from the line; notifies
-- the next waiter (see take.lua). Writes that only people read may fail (try), so that a server out of
-- memory still releases.
-- KEYS: the lease, its record, the line, and the tombstone of the slot if that is given back too, or
--       the sharers
-- ARGV: 1 "incumbent1 <claim> <token> "; for a claim in doubt "incumbent1 <claim> ", for any token
--       2 the channel of the lease
--       The rest is missing in the give of a lease that is not shared, closed or in doubt:
--       3 ms for which the name stays closed, or 0
--       4 "incumbent1 <claim> ", by which its slot, its part and its place in line are found
--       5 the only holder that may take the name while it is closed, or ""
--       6 "undo" for a grant that its asker does not believe, else "": as the data may be of another
--         incarnation, later takes have to check the record again
--       7 "shared" if the lease is shared
-- Returns 1, or 0 if the claim does not hold it.
local call, try, value_start = redis.call, redis.pcall, ARGV[1]
local value, time = call('GET', KEYS[1]), call('TIME')
local quiet_note = try('HGET', KEYS[2], FIELD.quiet_note)

if type(quiet_note) == 'string' and quiet_note ~= '0' and value and not ARGV[3]
    and string.sub(value, 1, #value_start) == value_start then
  -- The short way, which nearly all gives go: the record is there, and nobody waits.
  -- Before the history, which a server out of memory refuses to write.
  call('DEL', KEYS[1])
  try('HSET', KEYS[2], FIELD.ended .. string.match(value, '^%d+', #value_start + 1),
    time[1] .. ' ' .. time[2])
  call('PUBLISH', ARGV[2], 'given')
  return 1
end

-- More than 45 letters have a token. Without one the claim is in doubt, which the long way notes.
if type(quiet_note) == 'string' and quiet_note ~= '0' and value and ARGV[7] and ARGV[6] == ''
    and string.sub(value, 1, 18) == 'incumbent1 shared ' and #value_start > 45 then
  -- The same for a lease that is shared, but by this claim alone, which came last.
  local token, index = string.match(value, '^%S+ %S+ (%d+) (%d+)')
  if token == string.sub(value_start, 45, -2) and call('ZCARD', KEYS[4]) == 1
      and try('HDEL', KEYS[2], FIELD.sharer .. string.sub(value_start, 12, 43)) == 1 then
    call('DEL', KEYS[1], KEYS[4])
    try('HSET', KEYS[2], FIELD.ended .. index, time[1] .. ' ' .. time[2])
    call('PUBLISH', ARGV[2], 'given')
    return 1
  end
end

-- INCLUDE line
local channel, closed_ms = ARGV[2], ARGV[3] or '0'
local any_token = ARGV[4] or string.match(value_start, '^%S+ %S+ ')
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

-- INCLUDE line:give

local function note_doubt(claim)
  -- Nobody knows whether the take of this claim was granted: it may still be on its way, and is
  -- refused for a minute. Nor is it known whether the server was still that of the asker.
  local over, doubts = string.format('%.0f', now + 60000000), try('HGET', KEYS[2], FIELD.doubts)
  local swept = type(doubts) == 'string' and string.match(doubts, ' (%d+)$')
  -- First, because a server out of memory refuses writes that add to it, unless the script has written
  -- before.
  try('HDEL', KEYS[2], FIELD.incarnation)
  if not swept or swept + 60000000 < tonumber(now) then
    -- Once a minute, so that they do not pile up on a server that is overloaded for long.
    local fields = try('HGETALL', KEYS[2])
    for at = 1, #fields, 2 do
      if starts_with(fields[at], FIELD.doubt) and fields[at + 1] < now then
        try('HDEL', KEYS[2], fields[at])
      end
    end
    swept = now
  end
  try('HSET', KEYS[2], FIELD.doubt .. claim, over, FIELD.doubts, over .. ' ' .. swept,
    FIELD.quiet_note, '0')
  if call('PTTL', KEYS[2]) == -1 and not try('HGET', KEYS[2], FIELD.field_count) then
    call('PEXPIRE', KEYS[2], 86400000)
  end
end

-- INCLUDE grant:give

local is_freed = false
if KEYS[4] and not sharers then
  local used = call('GET', KEYS[4])
  is_freed = used and starts_with(used, any_token) and call('DEL', KEYS[4])
end
if not is_believed and type(quiet_note) == 'string' then
  try('HDEL', KEYS[2], FIELD.incarnation)
  try('HSET', KEYS[2], FIELD.quiet_note, '0')
end
-- Before the lease is looked at, and whatever is found: a take may still arrive.
if value_start == any_token then note_doubt(string.sub(value_start, 12, -2)) end

local part = sharers and end_part(string.sub(any_token, 12, -2))
if part then
  try('HSET', KEYS[2], FIELD.ended .. string.match(part, ' (%d+)'), time[1] .. ' ' .. time[2])
  if turn then offer_turn(0) end
  call('PUBLISH', channel, 'given')
  return 1
end
if not value or not starts_with(value, value_start) then
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
local token, index = string.match(value, '^%S+ %S+ (%d+) (%d+)')
if try('HSET', KEYS[2], FIELD.ended .. index, time[1] .. ' ' .. time[2]) == 1
    and not call('HGET', KEYS[2], FIELD.token) then
  -- The record had expired during a long holding: it must not come back without an end.
  try('HSET', KEYS[2], FIELD.token, token, FIELD.history_index, index)
  if not call('HGET', KEYS[2], FIELD.field_count) then call('PEXPIRE', KEYS[2], 86400000) end
end
if turn then offer_turn(0) end
-- Waiters in line got messages of their own. This one is for all others, and for a successor.
call('PUBLISH', channel, successor and '' or 'given')
return 1
