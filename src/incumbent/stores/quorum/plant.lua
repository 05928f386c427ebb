-- Plant a lease again that its majority has just renewed, where it is missing.
-- KEYS: the lease, its floor (see take.lua), the node's marker
-- ARGV: 1 the value    2 ttl in ms    3 ms to keep the floor    4 "incumbent2 <members> "
--       5 ms for which a new node does not vote, or "-" for the longest ttl known    6 the floor that the renewal saw, "" for none
-- Only if nothing happened here since: the floor is still that one, and stays, unless the token is
-- above it.
local call, members = redis.call, ARGV[4]
local marker, time = call('GET', KEYS[3]), call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
if not marker or string.sub(marker, 1, #members) ~= members then return 0 end
local born, most = string.match(marker, '^(%d+) (%d+)$', #members + 1)
if born + (ARGV[5] == '-' and most or ARGV[5]) * 1000 - now > 0 then return 0 end
local kept = call('GET', KEYS[2])
local floor = kept and string.sub(kept, 1, 16)
if (floor or '') ~= ARGV[6] then return 0 end
if not call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end

local token, holder = string.match(ARGV[1], '^%S+ %S+ (%d+) %S+ %S+ %S+( %S*)')
local last = kept and string.sub(kept, 34) or ''
if string.match(last, '^(%d+) [^\n]*$') ~= token and string.match(last, '\n(%d+) [^\n]*$') ~= token then
  last = (last == '' and '' or last .. '\n') .. token .. holder
end
if not floor or token - floor > 0 then floor = string.format('%016.0f', token) end
local at, till = math.floor(now / 1000), kept and string.sub(kept, 20, 32)
local flag = kept and string.sub(kept, 17, 19) or ' + '
if till and till - at >= ARGV[3] + 0 then
  call('SET', KEYS[2], floor .. flag .. till .. ' ' .. last, 'KEEPTTL')
else
  till = string.format('%013.0f ', at + ARGV[3])
  call('SET', KEYS[2], floor .. flag .. till .. last, 'PX', ARGV[3])
end
return 1
