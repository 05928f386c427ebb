-- Look at a lease before waiting for its end, and mark it so that its end is told: the word after
-- the token is then 1. The mark lasts as long as the holding, and each that waits looks anew.
-- KEYS: the lease
local lease = KEYS[1]
local value = redis.call('GET', lease)
local mark = value and string.match(value, '^incumbent1 %S+ %d+ ()0 ')
if mark then
  local marked = string.sub(value, 1, mark - 1) .. '1' .. string.sub(value, mark + 1)
  redis.pcall('SET', lease, marked, 'KEEPTTL')
end
return value
