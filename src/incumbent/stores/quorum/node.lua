-- What the scripts have in common. The node's marker says which quorum it belongs to:
-- "incumbent2 <members> <born, unix us> <the longest ttl that was asked for here, ms>".
local call, try = redis.call, redis.pcall
local MINUTE, DAY_MS = 60000000, 86400000
local function starts_with(text, start) return string.sub(text, 1, #start) == start end
local function whole(number) return string.format('%.0f', number) end
local function unix_us()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end
