-- Accept a change of what is kept beside a lease: see promise.lua.
-- KEYS: the hash, the node's marker, the lease, its floor (see take.lua), which names the channel too
-- ARGV: 1 ballot    2 "incumbent2 <members> "    3 the state that is changed, or "=" if all its entries
--       follow, with "s"    4 "incumbent1 <claim> <token> " that has to hold the lease, or ""
--       5 the entry that changes, or ""    6 "=" and what it becomes, or "-" to remove it
--       7 ms to keep the state after its last slot is over    8... all entries and their values
-- Returns 1 accepted, 0 not: promised to another, or another state; -1 the claim does not hold it.
local call, ballot, members = redis.call, ARGV[1], ARGV[2]
local marker, kept = call('GET', KEYS[2]), call('HMGET', KEYS[1], 'p', 's')
if not marker or string.sub(marker, 1, #members) ~= members then return 0 end
local state = string.match(kept[2] or '0', '^%d+')
if state == ballot then return 1 end
if kept[1] ~= ballot or ARGV[3] ~= '=' and state ~= ARGV[3] then return 0 end
if ARGV[4] ~= '' then
  local value = call('GET', KEYS[3])
  if not value or string.sub(value, 1, #ARGV[4]) ~= ARGV[4] then return -1 end
end

-- First what a server out of memory refuses, while nothing has changed.
call('HSET', KEYS[1], 'p', ballot)
if ARGV[3] == '=' then
  call('DEL', KEYS[1])
  for at = 8, #ARGV, 2 do call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
end
local before = call('HGET', KEYS[1], 's')
local states = string.sub(ballot .. (before and ' ' .. before or ''), 1, 135)
call('HSET', KEYS[1], 'p', ballot, 's', states)
if ARGV[6] == '-' then
  call('HDEL', KEYS[1], ARGV[5])
elseif ARGV[5] ~= '' then
  call('HSET', KEYS[1], ARGV[5], string.sub(ARGV[6], 2))
end

-- By the ballot, which is a time: all nodes do the same then, and one whose clock is wrong forgets
-- nothing. A slot whose time is over is as good as none; a ballot may be a minute ahead.
local now, all, lasting, last = math.floor(ballot / 1000), call('HGETALL', KEYS[1]), false, 0
for at = 1, #all, 2 do
  local kind = string.sub(all[at], 1, 2)
  if kind == 'f:' then lasting = true end
  if kind == 'u:' then
    local left = string.match(all[at + 1], '^%d+') - now
    if left < -120000 then call('HDEL', KEYS[1], all[at]) end
    last = math.max(last, left)
  end
end
local keep = string.format('%.0f', ARGV[7] + last)
if lasting then call('PERSIST', KEYS[1])
elseif call('PTTL', KEYS[1]) < keep + 0 then call('PEXPIRE', KEYS[1], keep) end

-- Votes and renewals look here only if they are told to.
local said, floor = call('HMGET', KEYS[1], 'f:pause', 'f:resign'), redis.pcall('GET', KEYS[4])
if (said[1] or said[2]) and type(floor) == 'string' then
  call('SET', KEYS[4], string.sub(floor, 1, 17) .. '+' .. string.sub(floor, 19), 'KEEPTTL')
end
call('PUBLISH', KEYS[4], '')
return 1
