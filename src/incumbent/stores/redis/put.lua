-- Put. The fields of the companion are listed in take.
-- KEYS: the lease, its companion
-- ARGV: 1 "f:<field>"  2 guard: none, absent, version, claim  3 the version, or "incumbent2 <claim>
--       <token> "      4 "=" and the value, or "-" to remove  5 channel
local call = redis.call
local field, guard, want = ARGV[1], ARGV[2], ARGV[3]
local old = call('HGET', KEYS[2], field)
local holds = guard == 'none' or (guard == 'absent' and not old)
if guard == 'version' then holds = old and string.match(old, '^%d+') == want end
if guard == 'claim' then
  local value = call('GET', KEYS[1])
  holds = value and string.sub(value, 1, #want) == want
end
if not holds then return -1 end

local version = 0
if ARGV[4] ~= '-' then
  version = call('HINCRBY', KEYS[2], 'v', 1)
  -- Without `x` a take would not look at the fields: see there.
  call('HSET', KEYS[2], field, version .. ' ' .. string.sub(ARGV[4], 2), 'x', '0')
  if not old then
    call('HINCRBY', KEYS[2], 'k', 1)
    call('PERSIST', KEYS[2])
  end
elseif old then
  -- Counted first: a server out of memory refuses that, and then nothing has happened.
  local left = call('HINCRBY', KEYS[2], 'k', -1)
  call('HDEL', KEYS[2], field)
  if left < 1 then
    call('HDEL', KEYS[2], 'k')
    call('PEXPIRE', KEYS[2], 86400000)
  end
end
call('PUBLISH', ARGV[5], '')
return version
