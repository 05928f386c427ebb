-- Take. The first half is the uncontended path, where every redis.call counts (about 0.5 us each).
-- KEYS: the lease, its companion, and the tombstone of the slot if one is asked for
-- ARGV: 1 "incumbent1 <claim> "    2 " <ttl ms> <holder> <meta>"   3 ttl in ms
--       4 ms to keep the companion 5 " <slot or -> <holder>"
--       With a slot: 6 ms to keep its tombstone, else "-" if more follows.
--       With a candidacy (the last key is the list of candidates): 7 its ms   8 channel
local call, head = redis.call, ARGV[1]
local kept, time = call('HMGET', KEYS[2], 't', 'n', 'k'), call('TIME')

-- Numbers stay texts: Lua writes 14 of their 16 digits. Texts of one length compare as numbers.
local now = time[1] .. string.sub('00000' .. time[2], -6)
local token, last = now, kept[1]
if last and (last >= now or #last ~= #now) then
  token = string.format('%.0f', math.max(now, last + 1))
end

local slot = ARGV[6] and ARGV[6] ~= '-' and KEYS[3]
local paused, resign, used = false, false, false
if kept[3] then
  local fields = call('HMGET', KEYS[2], 'f:pause', 'f:resign')
  paused, resign = fields[1], fields[2]
end
if slot then
  used = call('GET', slot)
  if used and string.sub(used, 1, #head) == head then used = false end
end

local how, value, ours = 'NX'
repeat
  if not paused and not used then
    local place = ((kept[2] or -1) + 1) % 20
    value = head .. token .. ' ' .. place .. ' ' .. now .. ARGV[2]
    if call('SET', KEYS[1], value, how, 'PX', ARGV[3]) then
      call('HSET', KEYS[2], 't', token, 'n', place, 'h' .. place, token .. ' ' .. now .. ARGV[5])
      if slot then call('SET', slot, value, 'PX', ARGV[6]) end
      -- A request to resign was meant for an earlier holder.
      if resign then
        call('HDEL', KEYS[2], 'f:resign')
        if call('HINCRBY', KEYS[2], 'k', -1) < 1 then
          call('HDEL', KEYS[2], 'k')
          kept[3] = false
        end
      end
      if not kept[3] then call('PEXPIRE', KEYS[2], ARGV[4]) end
      if ARGV[7] then
        redis.pcall('ZREM', KEYS[#KEYS], string.match(ARGV[5], ' (%S*)$'))
        call('PUBLISH', ARGV[8], '')
      end
      return head .. token
    end
  end
  value = call('GET', KEYS[1])
  -- What is reserved for the asker is as good as free: once more, in its place.
  ours = value and string.sub(value, 1, 20) == 'incumbent1 reserved '
    and string.match(value, ' (%S*)$') == string.match(ARGV[5], ' (%S*)$')
  how = ours and not paused and not used and 'XX'
until not how

if value and string.sub(value, 1, #head) == head then
  local left, ttl = call('PTTL', KEYS[1]), tonumber(ARGV[3])
  if left < ttl then
    call('PEXPIRE', KEYS[1], ttl)
    left = ttl
  end
  return {string.match(value, '^%S+ %S+ %d+'), left}
end

-- Refused. The list is for people: that it cannot be written changes no answer.
if ARGV[7] then
  local line, holder = KEYS[#KEYS], string.match(ARGV[5], ' (%S*)$')
  local at = string.sub(now, 1, -4)
  redis.pcall('ZREMRANGEBYSCORE', line, '-inf', at)
  if type(redis.pcall('ZADD', line, string.format('%.0f', at + ARGV[7]), holder)) == 'number' then
    call('ZREMRANGEBYRANK', line, 0, -101)
    if call('PTTL', line) < tonumber(ARGV[7]) then call('PEXPIRE', line, ARGV[7]) end
  end
end
local what = value and string.match(value, '^incumbent1 (%S+) ')
local closed = what == 'closed' or what == 'reserved'
if value and not (closed and paused) and not ours then
  return {closed and what or 'held', value, call('PTTL', KEYS[1]), now}
end
if paused then return {'paused', paused, -1, now} end
return {'slot', used, call('PTTL', slot), now}
