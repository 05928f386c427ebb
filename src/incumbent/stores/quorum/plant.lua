-- Plant a lease again that its majority has just renewed, where it is missing.
-- KEYS: the lease, its companion, the node's marker
-- ARGV: 1 the value    2 ttl in ms    3 ms to keep the companion    4 "incumbent1 <members> "
--       5 ms for which a new node does not vote    6 the floor that the renewal saw, "" for none
-- Only if nothing happened here since: the floor is still that one, and stays, unless the token is
-- above it.
local call, members = redis.call, ARGV[4]
local marker, time = call('GET', KEYS[3]), call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
if not marker or string.sub(marker, 1, #members) ~= members then return 0 end
if string.sub(marker, #members + 1) + ARGV[5] * 1000 - now > 0 then return 0 end
local kept = call('HMGET', KEYS[2], 't', 'k')
local floor = kept[1]
if (floor or '') ~= ARGV[6] then return 0 end
if not call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
local token = string.match(ARGV[1], '^%S+ %S+ (%d+)')
if not floor or token - floor > 0 then call('HSET', KEYS[2], 't', token) end
if not kept[2] and call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then call('PEXPIRE', KEYS[2], ARGV[3]) end
return 1
