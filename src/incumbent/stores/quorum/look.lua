-- Look at a lease before waiting for its end, and mark it so that its end is told: the word after
-- the token is then 1. The mark lasts as long as the holding, and each that waits looks anew.
-- KEYS: the lease
local value = redis.call('GET', KEYS[1])
local at = value and string.match(value, '^incumbent1 %S+ %d+ ()0 ')
if at then
  redis.pcall('SET', KEYS[1], string.sub(value, 1, at - 1) .. '1' .. string.sub(value, at + 1), 'KEEPTTL')
end
return value
