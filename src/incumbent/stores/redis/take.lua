-- Take. The first half is the uncontended path, where every redis.call counts (about 0.5 us each).
-- KEYS: the lease, its companion, and the tombstone of the slot if one is asked for
-- ARGV: 1 "incumbent1 <claim> "    2 " <ttl ms> <holder> <meta>"   3 ttl in ms
--       4 ms to keep the companion 5 " <slot or -> <holder>"       6 ms to keep the tombstone
local call, head = redis.call, ARGV[1]
local kept, time = call('HMGET', KEYS[2], 't', 'n', 'k'), call('TIME')

-- Numbers stay texts: Lua writes 14 of their 16 digits. Texts of one length compare as numbers.
local now = time[1] .. string.sub('00000' .. time[2], -6)
local token, last = now, kept[1]
if last and (last >= now or #last ~= #now) then
  token = string.format('%.0f', math.max(now, last + 1))
end

local paused, resign, used = false, false, false
if kept[3] then
  local fields = call('HMGET', KEYS[2], 'f:pause', 'f:resign')
  paused, resign = fields[1], fields[2]
end
if KEYS[3] then
  used = call('GET', KEYS[3])
  if used and string.sub(used, 1, #head) == head then used = false end
end

if not paused and not used then
  local place = ((kept[2] or -1) + 1) % 20
  local value = head .. token .. ' ' .. place .. ' ' .. now .. ARGV[2]
  if call('SET', KEYS[1], value, 'NX', 'PX', ARGV[3]) then
    call('HSET', KEYS[2], 't', token, 'n', place, 'h' .. place, token .. ' ' .. now .. ARGV[5])
    if KEYS[3] then call('SET', KEYS[3], value, 'PX', ARGV[6]) end
    -- A request to resign was meant for an earlier holder.
    if resign then
      call('HDEL', KEYS[2], 'f:resign')
      if call('HINCRBY', KEYS[2], 'k', -1) < 1 then
        call('HDEL', KEYS[2], 'k')
        kept[3] = false
      end
    end
    if not kept[3] then call('PEXPIRE', KEYS[2], ARGV[4]) end
    return head .. token
  end
end

local value = call('GET', KEYS[1])
if value and string.sub(value, 1, #head) == head then
  local left, ttl = call('PTTL', KEYS[1]), tonumber(ARGV[3])
  if left < ttl then
    call('PEXPIRE', KEYS[1], ttl)
    left = ttl
  end
  return {string.match(value, '^%S+ %S+ %d+'), left}
end
local closed = value and string.sub(value, 1, 18) == 'incumbent1 closed '
if value and not (closed and paused) then
  return {closed and 'closed' or 'held', value, call('PTTL', KEYS[1]), now}
end
if paused then return {'paused', paused, -1, now} end
return {'slot', used, call('PTTL', KEYS[3]), now}
