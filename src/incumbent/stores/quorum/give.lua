-- Give. Deletes or closes only what the claim holds; what is only for people may fail (pcall), so
-- that a node out of memory still lets go.
-- KEYS: the lease, its companion
-- ARGV: 1 "incumbent1 <claim> <token> ", or without the token if any will do   2 channel
--       3 ms to stay closed, or 0    4 whom it is reserved for, if anybody
local call, head = redis.call, ARGV[1]
local value = call('GET', KEYS[1])
if not value or string.sub(value, 1, #head) ~= head then return 0 end
local token, place, rest = string.match(value, '^%S+ %S+ (%d+) (%d+)(.*)$')
if ARGV[3] ~= '0' then
  local word = 'closed '
  if ARGV[4] then
    -- The name stands where the meta was.
    word, rest = 'reserved ', string.match(rest, '^ %S+ %S+ %S* ') .. ARGV[4]
  end
  call('SET', KEYS[1], 'incumbent1 ' .. word .. token .. ' ' .. place .. rest, 'PX', ARGV[3])
else
  call('DEL', KEYS[1])
end
local time = call('TIME')
if redis.pcall('HSET', KEYS[2], 'e' .. place, time[1] .. ' ' .. time[2]) == 1
    and call('HLEN', KEYS[2]) == 1 then
  -- The companion had expired during a long holding: it must not come back without an end.
  redis.pcall('HSET', KEYS[2], 't', token, 'n', place)
  call('PEXPIRE', KEYS[2], 86400000)
end
call('PUBLISH', ARGV[2], '')
return 1
