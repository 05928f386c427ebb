-- Put a switch. Its version is a ballot, the same on every node, and the larger one is the last word.
-- `k` counts the switches: while there is one, their key has no end. A switch that was removed
-- leaves the version of its removal as "d:<switch>", so that a late writing does not bring it back.
-- KEYS: the lease, its switches, the node's marker, its floor (see take.lua), which names the channel
-- ARGV: 1 the switch   2 guard: none, absent, version, claim   3 the version, or "incumbent1 <claim>
--       <token> "   4 "=" and the value, or "-" to remove   5 version   6 members
-- Returns 1 written, 0 there is a later word, -1 the guard does not hold.
local call = redis.call
local field, gone, guard, want = 'f:' .. ARGV[1], 'd:' .. ARGV[1], ARGV[2], ARGV[3]
local marker, time = call('GET', KEYS[3]), call('TIME')
if marker and string.sub(marker, 1, #ARGV[6]) ~= ARGV[6] then return {'members', marker} end
if not marker then
  call('SET', KEYS[3], ARGV[6] .. time[1] .. string.sub('00000' .. time[2], -6))
end
local both = call('HMGET', KEYS[2], field, gone)
local old, removed = both[1], both[2]
local holds = guard == 'none' or (guard == 'absent' and not old)
if guard == 'version' then holds = old and string.match(old, '^%d+') == want end
if guard == 'claim' then
  local value = call('GET', KEYS[1])
  holds = value and string.sub(value, 1, #want) == want
end
if not holds then return -1 end
local last = old and string.match(old, '^%d+') or removed
if last and ARGV[5] - last <= 0 then return ARGV[5] - last == 0 and 1 or 0 end

if ARGV[4] ~= '-' then
  call('HSET', KEYS[2], field, ARGV[5] .. ' ' .. string.sub(ARGV[4], 2))
  if not old then
    call('HINCRBY', KEYS[2], 'k', 1)
    call('PERSIST', KEYS[2])
  end
  -- Votes look here only if they are told to.
  local kept = call('GET', KEYS[4])
  if kept then
    call('SET', KEYS[4], string.sub(kept, 1, 17) .. '+' .. string.sub(kept, 19), 'KEEPTTL')
  end
else
  call('HSET', KEYS[2], gone, ARGV[5])
  if old then
    local left = call('HINCRBY', KEYS[2], 'k', -1)
    call('HDEL', KEYS[2], field)
    if left < 1 then call('HDEL', KEYS[2], 'k') end
  end
  if not call('HGET', KEYS[2], 'k') and call('PTTL', KEYS[2]) < 86400000 then
    call('PEXPIRE', KEYS[2], 86400000)
  end
end
call('PUBLISH', KEYS[4], '')
return 1
