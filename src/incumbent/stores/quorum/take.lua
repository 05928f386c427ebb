-- One node's vote. It is given if all of this is so, in this order:
-- - the node belongs to the asker's quorum, and is no newer than ARGV[8] says: a blank one is born now;
-- - nobody else has the lease here, and the name is neither paused nor closed;
-- - the ballot is above the floor, the largest ballot that was voted for here. Where none is kept,
--   the floor is a minute before the node's clock;
-- - the ballot is at most a minute ahead of the clock, or a second above the floor.
-- What the claim has here already is not voted for again: its ballot is told, and raised if asked.
-- KEYS: the lease, its companion, the node's marker, and the list of candidates if one is kept
-- ARGV: 1 "incumbent1 <claim> "    2 ballot    3 " <ttl ms> <holder> <meta>"    4 ttl in ms
--       5 ms to keep the companion    6 " - <holder>"    7 "incumbent1 <members> "
--       8 ms for which a new node does not vote    9 "+" to raise what the claim has here, else "-"
--       With a candidacy: 10 its ms   11 channel
-- Returns "incumbent1 <claim> <ballot>" for a fresh vote; {that, ms left} for a claim that was here;
-- {kind, value, ms left, now, floor} for no vote.
local call, head, ballot, members = redis.call, ARGV[1], ARGV[2], ARGV[7]
local kept, marker, time = call('HMGET', KEYS[2], 't', 'n', 'k'), call('GET', KEYS[3]), call('TIME')

-- Numbers stay texts: Lua writes 14 of their 16 digits. In differences they are exact.
local now = time[1] .. string.sub('00000' .. time[2], -6)
if not marker then
  marker = members .. now
  call('SET', KEYS[3], marker)
end
if string.sub(marker, 1, #members) ~= members then return {'members', marker, -1, now, ''} end
local young = string.sub(marker, #members + 1) + ARGV[8] * 1000 - now
if young > 0 then return {'young', marker, math.ceil(young / 1000), now, ''} end

local floor, ahead = kept[1], ballot - now
local admits = 'low'
if floor and ballot - floor > 0 or not floor and ahead > -60000000 then
  admits = ahead <= 60000000 or floor and ballot - floor <= 1000000 or 'high'
end
local paused, resign = false, false
if kept[3] then
  local fields = call('HMGET', KEYS[2], 'f:pause', 'f:resign')
  paused, resign = fields[1], fields[2]
end

local how, value, ours = 'NX'
repeat
  if admits == true and not paused then
    local place = ((kept[2] or -1) + 1) % 20
    value = head .. ballot .. ' ' .. place .. ' ' .. now .. ARGV[3]
    if call('SET', KEYS[1], value, how, 'PX', ARGV[4]) then
      call('HSET', KEYS[2], 't', ballot, 'n', place, 'h' .. place, ballot .. ' ' .. now .. ARGV[6])
      -- A request to resign was meant for an earlier holder.
      if resign then
        call('HDEL', KEYS[2], 'f:resign')
        call('HSET', KEYS[2], 'd:resign', string.match(resign, '^%d+'))
        if call('HINCRBY', KEYS[2], 'k', -1) < 1 then
          call('HDEL', KEYS[2], 'k')
          kept[3] = false
        end
      end
      -- What is ahead of the clock is remembered for longer: until a minute before the clock is above it.
      local keep = ahead > 60000000 and math.ceil(ARGV[5] + ahead / 1000) or ARGV[5]
      if not kept[3] then call('PEXPIRE', KEYS[2], keep) end
      if ARGV[10] then
        redis.pcall('ZREM', KEYS[4], string.match(ARGV[6], ' (%S*)$'))
        call('PUBLISH', ARGV[11], '')
      end
      return head .. ballot
    end
  end
  value = call('GET', KEYS[1])
  -- What is reserved for the asker is as good as free: once more, in its place.
  ours = value and string.sub(value, 1, 20) == 'incumbent1 reserved '
    and string.match(value, ' (%S*)$') == string.match(ARGV[6], ' (%S*)$')
  how = how == 'NX' and ours and admits == true and not paused and 'XX'
until not how

if value and string.sub(value, 1, #head) == head then
  local stored, left, ttl = string.match(value, '^%d+', #head + 1), call('PTTL', KEYS[1]), ARGV[4] + 0
  if ARGV[9] == '+' and stored ~= ballot then
    if admits ~= true then return {admits, value, left, now, floor or ''} end
    local place = string.match(value, '^%d+ (%d+)', #head + 1)
    call('SET', KEYS[1], head .. ballot .. string.sub(value, #head + #stored + 1), 'KEEPTTL')
    call('HSET', KEYS[2], 't', ballot, 'h' .. place, ballot .. ' ' .. now .. ARGV[6])
    if not kept[3] then call('PEXPIRE', KEYS[2], ARGV[5]) end
    stored = ballot
  end
  if left < ttl then
    call('PEXPIRE', KEYS[1], ttl)
    left = ttl
  end
  return {head .. stored, left}
end

local what = value and string.match(value, '^incumbent1 (%S+) ')
local closed = what == 'closed' or what == 'reserved'
local kind = not paused and admits or 'paused'
if value and not (closed and paused) and not ours then kind = closed and what or 'held' end
-- The list is for people: that it cannot be written changes no answer.
if ARGV[10] and kind ~= 'low' and kind ~= 'high' then
  local line, holder = KEYS[4], string.match(ARGV[6], ' (%S*)$')
  local at = string.sub(now, 1, -4)
  redis.pcall('ZREMRANGEBYSCORE', line, '-inf', at)
  if type(redis.pcall('ZADD', line, string.format('%.0f', at + ARGV[10]), holder)) == 'number' then
    call('ZREMRANGEBYRANK', line, 0, -101)
    if call('PTTL', line) < tonumber(ARGV[10]) then call('PEXPIRE', line, ARGV[10]) end
  end
end
if kind == 'paused' then return {kind, paused, -1, now, floor or ''} end
return {kind, value or '', value and call('PTTL', KEYS[1]) or -1, now, floor or ''}
