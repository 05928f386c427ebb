-- Since when a server that was a replica has been a master, as far as its clients have seen.
-- KEYS: the marker    ARGV: 1 its replication id, which changes when a replica becomes a master
-- Returns the milliseconds since the first look after that; the first look returns 0.
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local id, since = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
if id ~= ARGV[1] then since = now end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. since, 'PX', 2592000000)
return math.floor((now - since) / 1000)
