-- Grants on the long way: all that they write, for one holder or for several that share the lease.
-- A lease that is shared says what the latest sharer asked for. The record has the part of each, and
-- the sorted set `sharers` when each part ends.
-- Uses: token, now, ttl, holder, permits, sharers, now_ms, keep, claim, last_index, value_start,
--   has_fields, doubts, turn, incarnation, slot, slot_keep, resign, after_grant, candidacy,
--   candidates, is_known, least_token
-- Sets: grant, share_again, keep, has_fields
local function share(index, mine, is_first)
  -- Returns in how many ms another may share it.
  -- Others see one lease, which lasts as long as the longest part. It is written first: a server out
  -- of memory refuses that, and then nothing has happened.
  local value, left = string.format('incumbent1 shared %s %s %s %s %s %s', token, index, now, ttl,
    holder, permits), math.max(tonumber(ttl), is_first and 0 or call('PTTL', KEYS[1]))
  call('SET', KEYS[1], value, 'PX', left)
  if is_first then
-- INCLUDE grant:crashed
  end
  call('ZADD', sharers, string.format('%.0f', now_ms + ttl), mine)
  -- As long as the record, which has their parts: those who crash are found by this list.
  call('PEXPIRE', sharers, math.max(left, keep * 2))
  call('HSET', KEYS[2], FIELD.sharer .. claim, token .. ' ' .. index .. ' ' .. now .. ARGV[2])
  if permits == '0' or call('ZCARD', sharers) < tonumber(permits) then return 0 end
  return call('ZRANGE', sharers, 0, 0, 'WITHSCORES')[2] - now_ms
end

-- INCLUDE grant:ended

local function grant(condition, is_first)
  local index, recheck_in = ((last_index or -1) + 1) % 20, ttl
  local value = value_start .. token .. ' ' .. index .. ' ' .. now .. ARGV[2]
  if permits then
    recheck_in = share(index, claim .. ' ' .. token, is_first)
  elseif not call('SET', KEYS[1], value, condition, 'PX', ttl) then
    return
  end
  local quiet = '0'
  if not has_fields and not doubts and not turn and (not ARGV[7] or permits) then
    -- The record is kept for a sixteenth longer than was asked. During that sixteenth (62 us for each
    -- ms, less 2 ms for rounding) takes on the short way need not set its expiry.
    quiet = string.format('%.0f %s', now + keep * 62 - 2000, ARGV[4])
    keep = string.format('%.0f', keep * 17 / 16)
  end
  -- After the lease: a server out of memory refuses the SET, and then nothing has happened.
  call('HSET', KEYS[2], FIELD.token, token, FIELD.history_index, index, FIELD.quiet_note, quiet,
    FIELD.incarnation, incarnation, FIELD.holding .. index, token .. ' ' .. now .. ARGV[5])
  if slot then call('SET', slot, value, 'PX', slot_keep) end
  if resign and (is_first or not permits) then
    -- It was meant for an earlier holder.
    call('HDEL', KEYS[2], FIELD.put .. 'resign')
    if call('HINCRBY', KEYS[2], FIELD.field_count, -1) < 1 then
      call('HDEL', KEYS[2], FIELD.field_count)
      has_fields = false
    end
  end
  if not has_fields then call('PEXPIRE', KEYS[2], keep) end
  if turn then after_grant(recheck_in) end
  if candidacy then
    try('ZREM', candidates, holder)
    call('PUBLISH', ARGV[9], '')
  end
  return is_known and value_start .. token or { value_start .. token }
end

local function share_again(mine)
  -- The claim has a part already: the same grant once more, unless it is from before a promotion.
  local own = string.match(mine, '^%d+')
  local ends = call('ZSCORE', sharers, claim .. ' ' .. own)
  if not ends then return end
  if tonumber(own) < tonumber(least_token) then
    call('ZREM', sharers, claim .. ' ' .. own)
    return grant('XX', false)
  end
  local left = math.max(ends - now_ms, tonumber(ttl))
  call('ZADD', sharers, string.format('%.0f', now_ms + left), claim .. ' ' .. own)
  for _, key in ipairs({ KEYS[1], sharers }) do
    if call('PTTL', key) < left then call('PEXPIRE', key, left) end
  end
  return { value_start .. own, left }
end

-- PART ended
-- Uses: sharers, now_ms
-- Sets: forget_ended_parts
local function forget_ended_parts()
  -- Only here: no key of its own expires with a part, as the lease lasts as long as the longest.
  for _, member in ipairs(call('ZRANGEBYSCORE', sharers, '-inf', now_ms)) do
    call('ZREM', sharers, member)
    try('HDEL', KEYS[2], FIELD.sharer .. string.match(member, '^%S+'))
  end
end

-- PART crashed
-- For the first to share the lease: others are listed still if all of them crashed, or if somebody
-- deleted their lease. The record would keep their parts for as long as the name is in use.
-- Uses: sharers
if call('DEL', sharers) == 1 then
  local fields = call('HGETALL', KEYS[2])
  for at = 1, #fields, 2 do
    if string.match(fields[at], '^' .. FIELD.sharer) then call('HDEL', KEYS[2], fields[at]) end
  end
end

-- PART give
-- What a give takes away.
-- Uses: value, starts_with, value_start, sharers, forget_ended_parts, now, now_ms
-- Sets: end_part
-- INCLUDE grant:ended
local function end_part(claim)
  -- Returns the claim's part in the lease, if it had one that was not over.
  if not value or not starts_with(value, 'incumbent1 shared ') then return end
  local part = try('HGET', KEYS[2], FIELD.sharer .. claim)
  local token = string.match(value_start, '^%S+ %S+ (%d+)') or part and string.match(part, '^%d+')
  local ends = token and call('ZSCORE', sharers, claim .. ' ' .. token)
  if not ends then return end
  call('ZREM', sharers, claim .. ' ' .. token)
  try('HDEL', KEYS[2], FIELD.sharer .. claim)
  forget_ended_parts()
  local last, until_ms = unpack(call('ZRANGE', sharers, -1, -1, 'WITHSCORES'))
  if last then
    -- Another value shows waiters that something changed. It says what the last of the others asked for.
    local stays = try('HGET', KEYS[2], FIELD.sharer .. string.sub(last, 1, #claim)) or value
    local which, who = string.match(stays, '(%d+ %d+) %d+( %d+ %S*)')
    call('SET', KEYS[1], 'incumbent1 shared ' .. which .. ' ' .. now .. who
      .. string.match(value, ' %d+$'), 'PX', string.format('%.0f', until_ms - now_ms))
  else
    call('DEL', KEYS[1])
  end
  return tonumber(ends) > now_ms and (part or 'incumbent1 0')
end
