-- Give. Deletes or closes only what the claim holds; what is only for people may fail (try), so that
-- a node out of memory still lets go.
-- KEYS: the lease, its floor
-- ARGV: 1 "incumbent1 <claim> <token> ", or without the token if any will do
--       2 " <ended, unix us>"    3 ms to stay closed, if so    4 whom it is reserved for, if anybody
-- INCLUDE node
-- INCLUDE floor
local lease, floor_key = unpack(KEYS)
local head, ended, closed_ms, successor = unpack(ARGV)
local value = call('GET', lease)
if not value or not starts_with(value, head) then return 0 end

if closed_ms then
  local word, token, rest = 'closed', string.match(value, '^%S+ %S+ (%d+)( .*)$')
  if successor then
    -- The name stands where the meta was.
    word, rest = 'reserved', string.match(rest, '^ %S+ %S+ %S+ %S* ') .. successor
  end
  call('SET', lease, 'incumbent1 ' .. word .. ' ' .. token .. rest, 'PX', closed_ms)
else
  call('DEL', lease)
end

if try('APPEND', floor_key, ended) == #ended then
  -- The floor had expired during a long holding: it must not come back without its number and an end.
  local token, holder = token_and_holder(value)
  local till = math.floor(unix_us() / 1000) + DAY_MS
  call('SET', floor_key, floor_value(token, ' + ', till, token .. holder .. ended), 'PX', DAY_MS)
end

-- One that waits has marked the lease: see look.lua. Without the token this is not the mark: tell it.
local is_marked = string.byte(value, #head + 1) ~= 48
if closed_ms or is_marked then call('PUBLISH', floor_key, '') end
return 1
