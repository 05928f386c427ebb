-- Give. Deletes or closes only what the claim holds; what is only for people may fail (pcall), so
-- that a node out of memory still lets go.
-- KEYS: the lease, its floor (see take.lua), which names the channel too
-- ARGV: 1 "incumbent1 <claim> <token> ", or without the token if any will do
--       2 " <ended, unix us>"    3 ms to stay closed, if so    4 whom it is reserved for, if anybody
local call, head = redis.call, ARGV[1]
local value = call('GET', KEYS[1])
if not value or string.sub(value, 1, #head) ~= head then return 0 end
if ARGV[3] then
  local word, token, rest = 'closed ', string.match(value, '^%S+ %S+ (%d+)( .*)$')
  if ARGV[4] then
    -- The name stands where the meta was.
    word, rest = 'reserved ', string.match(rest, '^ %S+ %S+ %S+ %S* ') .. ARGV[4]
  end
  call('SET', KEYS[1], 'incumbent1 ' .. word .. token .. rest, 'PX', ARGV[3])
else
  call('DEL', KEYS[1])
end
if redis.pcall('APPEND', KEYS[2], ARGV[2]) == #ARGV[2] then
  -- The floor had expired during a long holding: it must not come back without its number and an end.
  local token, holder = string.match(value, '^%S+ %S+ (%d+) %S+ %S+ %S+( %S*)')
  local time = call('TIME')
  local till = string.format(' + %013.0f ', time[1] * 1000 + math.floor(time[2] / 1000) + 86400000)
  call('SET', KEYS[2], string.format('%016.0f', token) .. till .. token .. holder .. ARGV[2], 'PX', 86400000)
end
-- Who waits has marked the lease: see look.lua. Without the token this is not the mark: tell it.
if ARGV[3] or string.byte(value, #head + 1) ~= 48 then call('PUBLISH', KEYS[2], '') end
return 1
