-- Promise to hear of no earlier change of what is kept beside a lease, and tell what is there.
-- The hash: "p", the largest ballot that was promised; "s", the ballots of the last few changes of the
-- state that was accepted, the newest first; "f:<field>", "<version> <value>"; "u:<slot>", "<until, unix ms> <claim> <token> <holder>".
-- KEYS: the hash, the node's marker, the lease
-- ARGV: 1 ballot    2 "incumbent2 <members> "    3 the longest ttl in ms    4 the entry asked for
--       5 "incumbent1 <claim> <token> " that has to hold the lease, or ""
-- Returns {s, entry or "", 1 if it holds the lease}, where s is "0" if nothing was ever changed, and "-"
-- if the node may have forgotten: it was blank, and has accepted nothing since;
-- {'low', floor, s}, {'high', now} if it does not promise, {'members', marker}.
local call, ballot, members = redis.call, ARGV[1], ARGV[2]
local marker, time = call('GET', KEYS[2]), call('TIME')
local now = time[1] * 1000000 + time[2]
if not marker then
  marker = members .. string.format('%.0f ', now) .. ARGV[3]
  call('SET', KEYS[2], marker)
end
if string.sub(marker, 1, #members) ~= members then return {'members', marker} end
local born = string.match(marker, '^%d+', #members + 1) + 0
local kept, value = call('HMGET', KEYS[1], 'p', 's', ARGV[4]), call('GET', KEYS[3])

-- As for a vote: see take.lua. A version is also above the token of the present holder, so that a
-- holder can tell which words came before it.
local floor = kept[1] and kept[1] + 0 or now - 60000000
if born > 0 and floor < born + 60000000 then floor = born + 60000000 end
local token = value and string.match(value, '^incumbent1 %S+ (%d+) ')
if token and token - floor > 0 then floor = token + 0 end
local states = kept[2] or born == 0 and '0' or '-'
if ballot - floor <= 0 then return {'low', string.format('%.0f', floor), states} end
local ahead = ballot - now
if ahead > 60000000 and not (ahead > 120000000 and ballot - floor <= 1000000) then
  return {'high', string.format('%.0f', now)}
end

call('HSET', KEYS[1], 'p', ballot)
if not kept[2] then call('PEXPIRE', KEYS[1], 600000) end
local holds = ARGV[5] == '' or value and string.sub(value, 1, #ARGV[5]) == ARGV[5]
return {states, kept[3] or '', holds and 1 or 0}
