-- Plant a lease again that its majority has just renewed, where it is missing. Only if nothing
-- happened here since: the floor is still the one that the renewal saw. The floor stays, unless the
-- token is above it.
-- KEYS: the lease, its floor, the node's marker
-- ARGV: 1 the value    2 ttl in ms    3 ms to keep the floor    4 "incumbent2 <members> "
--       5 ms for which a new node does not vote, or "-" for the longest ttl known
--       6 the floor that the renewal saw, "" for none
-- Returns 1 if it was planted, else 0.
-- INCLUDE node
-- INCLUDE floor
local lease, floor_key, marker_key = unpack(KEYS)
local value, ttl, keep, members, quarantine, seen = unpack(ARGV)
local marker, now = call('GET', marker_key), unix_us()
if not marker or not starts_with(marker, members) then return 0 end
local born, longest = string.match(marker, '^(%d+) (%d+)$', #members + 1)
if born + (quarantine == '-' and longest or quarantine) * 1000 - now > 0 then return 0 end
local kept = call('GET', floor_key)
local floor = floor_of(kept)
if (floor or '') ~= seen then return 0 end
if not call('SET', lease, value, 'NX', 'PX', ttl) then return 0 end

local token, holder = token_and_holder(value)
local last = last_of(kept)
if string.match(last, '^(%d+) [^\n]*$') ~= token and string.match(last, '\n(%d+) [^\n]*$') ~= token then
  last = (last == '' and '' or last .. '\n') .. token .. holder
end
if not floor or token - floor > 0 then floor = token end
local now_ms, till = math.floor(now / 1000), until_of(kept)
if till and till - now_ms >= keep + 0 then
  call('SET', floor_key, floor_value(floor, flag_of(kept), till, last), 'KEEPTTL')
else
  call('SET', floor_key, floor_value(floor, flag_of(kept), now_ms + keep, last), 'PX', keep)
end
return 1
