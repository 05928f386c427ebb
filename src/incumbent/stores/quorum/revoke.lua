-- Take back a vote that brought no majority, or that may still be on its way.
-- KEYS: the lease, its companion    ARGV: 1 "incumbent1 <claim> "    2 ballot    3 channel
-- A vote of that claim with a larger ballot is left alone: it is of a later try. The ballot becomes
-- the floor, so that a vote asked for earlier which arrives only now is refused.
local call, head, ballot = redis.call, ARGV[1], ARGV[2]
local value, freed = call('GET', KEYS[1]), 0
local kept, time = call('HMGET', KEYS[2], 't', 'n', 'k'), call('TIME')
if value and string.sub(value, 1, #head) == head then
  local stored, place = string.match(value, '^(%d+) (%d+)', #head + 1)
  if stored - ballot <= 0 then
    call('DEL', KEYS[1])
    call('HDEL', KEYS[2], 'h' .. place, 'e' .. place)
    if kept[2] == place then redis.pcall('HSET', KEYS[2], 'n', (place - 1) % 20) end
    call('PUBLISH', ARGV[3], '')
    freed = 1
  end
end
local floor = kept[1]
local ahead = ballot - (time[1] .. string.sub('00000' .. time[2], -6))
if ahead <= 60000000 and ahead > -60000000 and (not floor or ballot - floor > 0) then
  if type(redis.pcall('HSET', KEYS[2], 't', ballot)) == 'number' and not kept[3]
      and call('PTTL', KEYS[2]) < 600000 then
    call('PEXPIRE', KEYS[2], 600000)
  end
end
return freed
