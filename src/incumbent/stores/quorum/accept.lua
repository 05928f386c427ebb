-- Accept a change of what is kept beside a lease: see promise.lua.
-- KEYS: the hash, the node's marker, the lease, its floor
-- ARGV: 1 ballot    2 "incumbent2 <members> "    3 the state that is changed, or "=" if all its
--       entries follow, with the states    4 "incumbent1 <claim> <token> " that has to hold the
--       lease, or ""    5 the entry that changes, or ""    6 "=" and what it becomes, or "-" to remove
--       it    7 ms to keep the state after its last slot is over    8... all entries and their values
-- Returns 1 accepted, 0 not: promised to another, or another state; -1 the claim does not hold it.
-- INCLUDE node
-- INCLUDE floor
local hash, marker_key, lease, floor_key = unpack(KEYS)
local ballot, members, base, holding = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local entry, change, keep = ARGV[5], ARGV[6], ARGV[7]
local FIRST = 8
local marker = call('GET', marker_key)
local promised, states = unpack(call('HMGET', hash, FIELD.promised, FIELD.states))
if not marker or not starts_with(marker, members) then return 0 end
local state = string.match(states or '0', '^%d+')
if state == ballot then return 1 end
if promised ~= ballot or base ~= '=' and state ~= base then return 0 end
if holding ~= '' then
  local held = call('GET', lease)
  if not held or not starts_with(held, holding) then return -1 end
end

-- First what a server out of memory refuses, while nothing has changed.
call('HSET', hash, FIELD.promised, ballot)
if base == '=' then
  call('DEL', hash)
  for at = FIRST, #ARGV, 2 do call('HSET', hash, ARGV[at], ARGV[at + 1]) end
end
local before = call('HGET', hash, FIELD.states)
-- Eight ballots.
states = string.sub(ballot .. (before and ' ' .. before or ''), 1, 135)
call('HSET', hash, FIELD.promised, ballot, FIELD.states, states)
if change == '-' then
  call('HDEL', hash, entry)
elseif entry ~= '' then
  call('HSET', hash, entry, string.sub(change, 2))
end

-- By the ballot, which is a time: all nodes do the same then, and one whose clock is wrong forgets
-- nothing. A slot whose time is over is as good as none; a ballot may be a minute ahead.
local now_ms, entries, has_fields, last = math.floor(ballot / 1000), call('HGETALL', hash), false, 0
for at = 1, #entries, 2 do
  local name, value = entries[at], entries[at + 1]
  if starts_with(name, FIELD.field) then has_fields = true end
  if starts_with(name, FIELD.slot) then
    local left = string.match(value, '^%d+') - now_ms
    if left < -120000 then call('HDEL', hash, name) end
    last = math.max(last, left)
  end
end
local lifetime = whole(keep + last)
if has_fields then call('PERSIST', hash)
elseif call('PTTL', hash) < lifetime + 0 then call('PEXPIRE', hash, lifetime) end

-- Votes and renewals look at the fields only where the floor says so.
local pause, resign = unpack(call('HMGET', hash, FIELD.pause, FIELD.resign))
local kept = try('GET', floor_key)
if (pause or resign) and type(kept) == 'string' then
  call('SET', floor_key, floor_of(kept) .. ' + ' .. string.sub(kept, 20), 'KEEPTTL')
end
call('PUBLISH', floor_key, '')
return 1
