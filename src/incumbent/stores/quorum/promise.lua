-- Promise to accept no earlier change of what is kept beside a lease, and tell what is there.
-- The hash: `promised`, the largest ballot that was promised; `states`, the ballots of the last few
-- changes of the state that was accepted, the newest first; `field` and its name, "<version> <value>";
-- `slot` and its name, "<until, unix ms> <claim> <token> <holder>".
-- KEYS: the hash, the node's marker, the lease
-- ARGV: 1 ballot    2 "incumbent2 <members> "    3 the longest ttl in ms    4 the entry asked for
--       5 "incumbent1 <claim> <token> " that has to hold the lease, or ""
-- Returns {states, entry or "", 1 if it holds the lease}, where the states are "0" if nothing was ever
-- changed, and "-" if the node may have forgotten: it was blank, and has accepted nothing since;
-- {'low', floor, states}, {'high', now} if it does not promise, {'members', marker}.
-- INCLUDE node
local hash, marker_key, lease = unpack(KEYS)
local ballot, members, longest, entry, holding = unpack(ARGV)
local marker, now = call('GET', marker_key), unix_us()
if not marker then
  marker = members .. whole(now) .. ' ' .. longest
  call('SET', marker_key, marker)
end
if not starts_with(marker, members) then return { 'members', marker } end
local born = string.match(marker, '^%d+', #members + 1) + 0
local promised, states, value = unpack(call('HMGET', hash, FIELD.promised, FIELD.states, entry))
local held = call('GET', lease)

-- As for a vote: see take.lua. A version is also above the token of the present holder, so that a
-- holder can tell which words came before it.
local floor = promised and promised + 0 or now - MINUTE
if born > 0 and floor < born + MINUTE then floor = born + MINUTE end
local token = held and string.match(held, '^incumbent1 %S+ (%d+) ')
if token and token - floor > 0 then floor = token + 0 end
local known = states or born == 0 and '0' or '-'
if ballot - floor <= 0 then return { 'low', whole(floor), known } end
local ahead = ballot - now
if ahead > MINUTE and not (ahead > 2 * MINUTE and ballot - floor <= 1000000) then
  return { 'high', whole(now) }
end

call('HSET', hash, FIELD.promised, ballot)
if not states then call('PEXPIRE', hash, 600000) end
local holds = holding == '' or held and starts_with(held, holding)
return { known, value or '', holds and 1 or 0 }
