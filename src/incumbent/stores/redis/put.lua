-- Put: writes or removes a field, if its guard holds.
-- KEYS: the lease, its record
-- ARGV: 1 "f:<field>"  2 guard: none, absent, version, claim  3 the version, or "incumbent1 <claim>
--       <token> "      4 "=" and the value, or "-" to remove  5 channel
-- Returns the field's version, 0 if it was removed, -1 if the guard did not hold.
local call = redis.call
local field, guard, wanted, value, channel = unpack(ARGV)
local old = call('HGET', KEYS[2], field)
local holds = guard == 'none' or (guard == 'absent' and not old)
if guard == 'version' then holds = old and string.match(old, '^%d+') == wanted end
if guard == 'claim' then
  local lease = call('GET', KEYS[1])
  holds = lease and string.sub(lease, 1, #wanted) == wanted
end
if not holds then return -1 end

local version = 0
if value ~= '-' then
  version = call('HINCRBY', KEYS[2], FIELD.version, 1)
  -- A take reads the fields of a record that is not quiet.
  call('HSET', KEYS[2], field, version .. ' ' .. string.sub(value, 2), FIELD.quiet_note, '0')
  if not old then
    call('HINCRBY', KEYS[2], FIELD.field_count, 1)
    -- A pause has to outlive all leases: with a field the record has no end.
    call('PERSIST', KEYS[2])
  end
elseif old then
  -- First the count: a server out of memory refuses that, while nothing has been changed.
  local left = call('HINCRBY', KEYS[2], FIELD.field_count, -1)
  -- A waiter compares the version, and so notices a removal as well.
  call('HINCRBY', KEYS[2], FIELD.version, 1)
  call('HDEL', KEYS[2], field)
  if left < 1 then
    call('HDEL', KEYS[2], FIELD.field_count)
    call('PEXPIRE', KEYS[2], 86400000)
  end
end
call('PUBLISH', channel, '')
return version

-- PART marker
-- Write the marker, which says to which incarnation of the server its data belong, over what was seen.
-- KEYS: the marker    ARGV: 1 what was seen, "" for nothing    2 what to write
-- Returns what is there now.
local there = redis.call('GET', KEYS[1]) or ''
if there == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  there = ARGV[2]
end
return there

-- PART promoted
-- For how long a server that was a replica has been a master, as far as its clients have seen.
-- KEYS: the marker    ARGV: 1 its replication id, which changes when a replica becomes a master
-- Returns the milliseconds since a client saw it first; the first one gets 0.
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local id, since = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
if id ~= ARGV[1] then since = now end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. since, 'PX', 2592000000)
return math.floor((now - since) / 1000)
