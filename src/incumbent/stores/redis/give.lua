-- Give. Deletes or closes only what the claim holds; what is only for people may fail (pcall), so
-- that a server out of memory still lets go.
-- KEYS: the lease, its companion, and the tombstone of the slot if that is given back too
-- ARGV: 1 "incumbent1 <claim> <token> ", or without the token if any will do   2 channel
--       3 ms to stay closed, or 0    4 "incumbent1 <claim> "   5 whom it is reserved for, if anybody
local call, head = redis.call, ARGV[1]
local value, freed = call('GET', KEYS[1]), false
if KEYS[3] then
  local used = call('GET', KEYS[3])
  if used and string.sub(used, 1, #ARGV[4]) == ARGV[4] then freed = call('DEL', KEYS[3]) end
end
if not value or string.sub(value, 1, #head) ~= head then
  if freed then call('PUBLISH', ARGV[2], '') end
  return 0
end

if ARGV[3] and ARGV[3] ~= '0' then
  local word, rest = 'closed ', string.sub(value, #ARGV[4] + 1)
  if ARGV[5] then
    -- The name stands where the meta was.
    word, rest = 'reserved ', string.match(rest, '^%S+ %S+ %S+ %S+ %S* ') .. ARGV[5]
  end
  call('SET', KEYS[1], 'incumbent1 ' .. word .. rest, 'PX', ARGV[3])
else
  call('DEL', KEYS[1])
end
-- Without the token, the place in the history comes after one more word.
local place
if ARGV[3] then place = string.match(value, '^%S+ %S+ %d+ (%d+)')
else place = string.match(value, '^%d+', #head + 1) end
local time = call('TIME')
if redis.pcall('HSET', KEYS[2], 'e' .. place, time[1] .. ' ' .. time[2]) == 1
    and call('HLEN', KEYS[2]) == 1 then
  -- The companion had expired during a long holding: it must not come back without an end.
  redis.pcall('HSET', KEYS[2], 't', string.match(value, '^%S+ %S+ (%d+)'), 'n', place)
  call('PEXPIRE', KEYS[2], 86400000)
end
call('PUBLISH', ARGV[2], '')
return 1
