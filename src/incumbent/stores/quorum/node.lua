-- What a node does, a part for each script; `node` and `floor` are included by the others.

-- PART node
-- What the scripts have in common. The node's marker says which quorum it belongs to:
-- "incumbent1 <members> <born, unix us> <the longest ttl that was asked for here, ms>".
-- Sets: MINUTE, DAY_MS, starts_with, whole, unix_us
local call, try = redis.call, redis.pcall
local MINUTE, DAY_MS = 60000000, 86400000
local function starts_with(text, start) return string.sub(text, 1, #start) == start end
local function whole(number) return string.format('%.0f', number) end
local function unix_us()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- PART floor
-- The floor of a name is the largest ballot that was voted for here. Its key, which names the channel
-- of the changes too, has the value "<floor, 16 digits> <s> <until, unix ms, 13 digits> <last>".
-- s: "-" if neither "pause" nor "resign" is set for the name, "+" if one of them may be.
-- until: when the key expires. last: the last few holdings, a line each, before they move to the
-- past together: "<token> <holder>", with " <ended, unix us>" if it was given back.
-- Sets: floor_of, flag_of, until_of, last_of, last_token, token_and_holder, floor_value
local function floor_of(kept) return kept and string.sub(kept, 1, 16) end
local function flag_of(kept) return kept and string.sub(kept, 17, 19) or ' + ' end
local function until_of(kept) return kept and string.sub(kept, 20, 32) end
local function last_of(kept) return kept and string.sub(kept, 34) or '' end
local function last_token(last) return string.match(last, '(%d+) [^\n]*$') end
local function token_and_holder(value)
  return string.match(value, '^%S+ %S+ (%d+) %S+ %S+ %S+( %S*)')
end
local function floor_value(floor, flag, till, last)
  return string.format('%016.0f%s%013.0f ', floor, flag, till) .. last
end

-- PART found
-- Found a new cluster on a node that is blank: it votes at once, for nobody has voted here before.
-- KEYS: the node's marker    ARGV: 1 the marker    2 the last instant (unix us) at which to do it
-- Returns 1 if it was founded, else 0.
-- INCLUDE node:node
local founded, last_us = unpack(ARGV)
if last_us - unix_us() < 0 then return 0 end
return call('SET', KEYS[1], founded, 'NX') and 1 or 0

-- PART take
-- One node's vote. It is given if all of this is so, in this order:
-- - the node belongs to the asker's quorum, and is as old as `quarantine` says: a blank one is born now;
-- - nobody else has the lease here, and the name is neither paused nor closed;
-- - the ballot is above the floor. If no floor is kept, it is one minute before the node's clock.
--   It is never below the node's birth plus one minute: no vote that the node gave before it lost
--   its data was further ahead of its clock;
-- - the ballot is at most one minute ahead of the clock. If it is more than two minutes ahead, the
--   clock must have been set back or be wrong: then a ballot of up to one second above the last
--   vote is admitted.
-- A claim keeps its vote here: its ballot is returned, and raised if asked.
-- KEYS: the lease, its floor, the node's marker, its past, the hash of its fields (see promise),
--       and the list of candidates if one is kept
-- ARGV: 1 "incumbent1 <claim> "    2 ballot    3 " <ttl ms> <holder> <meta>"    4 ttl in ms
--       5 ms to keep the floor    6 the marker of a founded node: "incumbent1 <members> 0 <longest>"
--       7 ms for which a new node does not vote, or "-" for the longest ttl known    8 " <holder>"
--       If more is wanted: 9 "+" to raise what the claim has here, else "-"    10 ms of a candidacy
-- Returns "incumbent1 <claim> <ballot>" for a fresh vote; {that, ms left} for a claim that was here;
-- {kind, value, ms left, now, floor} for no vote.
-- INCLUDE node:node
-- INCLUDE node:floor
local lease, floor_key, marker_key, past, fields, candidates = unpack(KEYS)
local value_start, ballot, rest, ttl, keep, founded, quarantine, holder, raises, candidacy = unpack(ARGV)
local kept, marker, now = call('GET', floor_key), call('GET', marker_key), unix_us()

local function no(kind, value, left, floor)
  return { kind, value, left, whole(now), floor and whole(floor) or '' }
end

-- The usual case: a founded node is recognised by its whole marker.
local born = 0
if marker ~= founded then
  local members, longest = string.match(founded, '^(%S+ %S+ )0 (%d+)$')
  if not marker then
    marker = members .. whole(now) .. ' ' .. longest
    call('SET', marker_key, marker)
  end
  local theirs, since, most = string.match(marker, '^(%S+ %S+ )(%d+) (%d+)$')
  if theirs ~= members then return no('members', marker, -1) end
  if longest - most > 0 then
    most = longest
    call('SET', marker_key, members .. since .. ' ' .. most)
  end
  born = since + 0
  local young = born + (quarantine == '-' and most or quarantine) * 1000 - now
  if young > 0 then
    return no('young', marker, math.ceil(young / 1000))
  end
end

local floor, ahead, verdict = kept and floor_of(kept) + 0 or now - MINUTE, ballot - now, 'low'
if born > 0 and floor < born + MINUTE then floor = born + MINUTE end
if ballot - floor > 0 then
  local follows_a_wrong_clock = ahead > 2 * MINUTE and kept and ballot - floor <= 1000000
    and tonumber(last_token(last_of(kept))) == floor
  verdict = (ahead <= MINUTE or follows_a_wrong_clock) and 'ok' or 'high'
end
local paused, resign, flag = false, false, flag_of(kept)
if flag == ' + ' then
  paused, resign = unpack(call('HMGET', fields, FIELD.pause, FIELD.resign))
  flag = (paused or resign) and ' + ' or ' - '
end

local function move_to_past(last)
  -- The past is only for display: a failed write to it changes no vote. Returns whether it was empty.
  local length = try('APPEND', past, last)
  if type(length) == 'number' and length > 3000 and length > 25 * (#holder + 34) then
    local text, ends = call('GET', past), {}
    for at in string.gmatch(text, '()\n') do ends[#ends + 1] = at end
    if #ends > 20 then
      call('SET', past, string.sub(text, ends[#ends - 20] + 1), 'KEEPTTL')
    end
  end
  return length == #last
end

local function note_vote()
  local last, till, is_new_past = last_of(kept), until_of(kept), false
  if last ~= '' then last = last .. '\n' end
  if #last > 240 then
    is_new_past = move_to_past(last)
    last = ''
  end
  last = last .. ballot .. holder
  -- A request to resign was meant for an earlier holder.
  if resign and ballot - string.match(resign, '^%d+') > 0 then flag = ' - ' end
  -- A ballot far ahead of the clock is kept for longer: until the floor of a name for which none is
  -- kept, one minute before the clock, is above it.
  local needed = ahead > MINUTE and math.ceil(keep + ahead / 1000) or keep
  local lasts = till and till * 1000 - now >= needed * 1000
  if lasts then
    call('SET', floor_key, floor_value(ballot, flag, till, last), 'KEEPTTL')
  else
    -- A quarter longer than needed, so that not every vote has to set the expiry anew.
    needed = math.ceil(needed * 1.25)
    till = math.floor(now / 1000) + needed
    call('SET', floor_key, floor_value(ballot, flag, till, last), 'PX', needed)
  end
  if is_new_past or not lasts then call('PEXPIRE', past, math.ceil(keep * 1.25)) end
end

local may_vote, how, value, is_reserved = verdict == 'ok' and not paused, 'NX'
repeat
  if may_vote
      and call('SET', lease, value_start .. ballot .. ' 0 ' .. ballot .. rest, how, 'PX', ttl) then
    note_vote()
    if candidacy then
      try('ZREM', candidates, string.sub(holder, 2))
      call('PUBLISH', floor_key, '')
    end
    return value_start .. ballot
  end
  value = call('GET', lease)
  -- A reservation for the asker counts as free: try once more, and replace it.
  is_reserved = value and starts_with(value, 'incumbent1 reserved ')
    and string.match(value, ' %S*$') == holder
  how = how == 'NX' and is_reserved and may_vote and 'XX'
until not how

if value and starts_with(value, value_start) then
  local stored, left = string.match(value, '^%d+', #value_start + 1), call('PTTL', lease)
  if raises == '+' and stored ~= ballot then
    if verdict ~= 'ok' then return no(verdict, value, left, floor) end
    call('SET', lease, value_start .. ballot .. string.sub(value, #value_start + #stored + 1), 'KEEPTTL')
    -- Replace the last holding, which is this one: it goes on with its new token.
    local before = string.match(last_of(kept), '^.*\n') or ''
    local longer = math.ceil(keep * 1.25)
    local till = math.floor(now / 1000) + longer
    call('SET', floor_key, floor_value(ballot, flag, till, before .. ballot .. holder), 'PX', longer)
    call('PEXPIRE', past, longer)
    stored = ballot
  end
  if left < ttl + 0 then
    left = ttl + 0
    call('PEXPIRE', lease, left)
  end
  return { value_start .. stored, left }
end

local what = value and string.match(value, '^incumbent1 (%S+) ')
local is_closed = what == 'closed' or what == 'reserved'
local kind = paused and 'paused' or verdict
if value and not (is_closed and paused) and not is_reserved then
  kind = is_closed and what or 'held'
end
-- The list is for people: that it cannot be written changes no answer.
if candidacy and kind ~= 'low' and kind ~= 'high' then
  local now_ms = math.floor(now / 1000)
  try('ZREMRANGEBYSCORE', candidates, '-inf', whole(now_ms))
  local added = try('ZADD', candidates, whole(now_ms + candidacy), string.sub(holder, 2))
  if type(added) == 'number' then
    call('ZREMRANGEBYRANK', candidates, 0, -101)
    if call('PTTL', candidates) < tonumber(candidacy) then call('PEXPIRE', candidates, candidacy) end
  end
end
if kind == 'paused' then return no(kind, paused, -1, floor) end
return no(kind, value or '', value and call('PTTL', lease) or -1, floor)

-- PART renew
-- Renew what the claim has here with exactly its token, for many leases in one call.
-- KEYS: the node's marker; then of each lease, itself, its floor and the hash of its fields
-- ARGV: 1 what the answer echoes    2 "incumbent1 <members> "    3 ms for which a new node does not
--       vote, or "-" for the longest ttl known    4 the longest ttl in ms; then of each lease:
--       "incumbent1 <claim> <token> ", ttl in ms, "-" or "=" and the new meta
-- Returns the echo, then of each lease: 1 renewed; {pause, resign} renewed, with these fields;
-- 0 not here; "f<floor>" free, on a node that votes: the lease may be planted here again.
-- INCLUDE node:node
-- INCLUDE node:floor
local marker_key, echo, members, quarantine, longest = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local marker, now = call('GET', marker_key), unix_us()
if not marker then
  marker = members .. whole(now) .. ' ' .. longest
  -- try: a node that is out of memory still renews what it has.
  try('SET', marker_key, marker)
end
if not starts_with(marker, members) then return { 'members', marker } end
local born, most = string.match(marker, '^(%d+) (%d+)$', #members + 1)
if longest - most > 0 then
  most = longest
  try('SET', marker_key, members .. born .. ' ' .. most)
end
local votes = born + (quarantine == '-' and most or quarantine) * 1000 - now <= 0

local function change_meta(lease, channel, value, meta)
  local new = string.match(value, '^%S+ %S+ %S+ %S+ %S+ %S+ %S* ') .. meta
  if new ~= value and try('SET', lease, new, 'KEEPTTL').ok then call('PUBLISH', channel, '') end
end

local function notices(fields, value_start)
  local pause, resign = unpack(try('HMGET', fields, FIELD.pause, FIELD.resign))
  -- A request from before this holder was granted was meant for an earlier one.
  if resign and string.match(resign, '^%d+') - string.match(value_start, '(%d+) $') < 0 then
    resign = false
  end
  return (pause or resign) and { pause, resign } or 1
end

local function renew(lease, floor_key, fields, value_start, ttl, meta)
  local value = try('GET', lease)
  if type(value) == 'string' and starts_with(value, value_start) then
    if meta ~= '-' then change_meta(lease, floor_key, value, string.sub(meta, 2)) end
    if call('PTTL', lease) < ttl then call('PEXPIRE', lease, ttl) end
    local kept = try('GET', floor_key)
    if not kept then
      -- The floor expired during a long holding; the next vote needs the last one.
      local token, holder = token_and_holder(value)
      local till = math.floor(now / 1000) + DAY_MS
      try('SET', floor_key, floor_value(token, ' + ', till, token .. holder), 'PX', DAY_MS)
    end
    local may_be_told = not kept or type(kept) == 'string' and flag_of(kept) == ' + '
    return may_be_told and notices(fields, value_start) or 1
  end
  if value or not votes then return 0 end
  local kept = try('GET', floor_key)
  if kept and type(kept) ~= 'string' then return 0 end
  return 'f' .. (floor_of(kept) or '')
end

local answers = { echo }
for at = 2, #KEYS, 3 do
  local value_start, ttl, meta = ARGV[at + 3], tonumber(ARGV[at + 4]), ARGV[at + 5]
  answers[#answers + 1] = renew(KEYS[at], KEYS[at + 1], KEYS[at + 2], value_start, ttl, meta)
end
return answers

-- PART give
-- Give. Deletes or closes only what the claim holds; what is only for people may fail (try), so that
-- a node out of memory still lets go.
-- KEYS: the lease, its floor
-- ARGV: 1 "incumbent1 <claim> <token> ", or without the token if any will do
--       2 " <ended, unix us>"    3 ms to stay closed, if so    4 whom it is reserved for, if anybody
-- INCLUDE node:node
-- INCLUDE node:floor
local lease, floor_key = unpack(KEYS)
local value_start, ended, closed_ms, successor = unpack(ARGV)
local value = call('GET', lease)
if not value or not starts_with(value, value_start) then return 0 end

if closed_ms then
  local word, token, rest = 'closed', string.match(value, '^%S+ %S+ (%d+)( .*)$')
  if successor then
    -- The name stands where the meta was.
    word, rest = 'reserved', string.match(rest, '^ %S+ %S+ %S+ %S* ') .. successor
  end
  call('SET', lease, 'incumbent1 ' .. word .. ' ' .. token .. rest, 'PX', closed_ms)
else
  call('DEL', lease)
end

if try('APPEND', floor_key, ended) == #ended then
  -- The floor had expired during a long holding: it must not come back without its number and an end.
  local token, holder = token_and_holder(value)
  local till = math.floor(unix_us() / 1000) + DAY_MS
  call('SET', floor_key, floor_value(token, ' + ', till, token .. holder .. ended), 'PX', DAY_MS)
end

-- A waiter has marked the lease (see look), so its end is published. If `value_start` has no token, this
-- byte is not the mark, so the end is published in any case.
local is_marked = string.byte(value, #value_start + 1) ~= 48
if closed_ms or is_marked then call('PUBLISH', floor_key, '') end
return 1

-- PART revoke
-- Take back a vote that brought no majority, or that may still be on its way.
-- KEYS: the lease, its floor
-- ARGV: 1 "incumbent1 <claim> "    2 ballot    3 <ended, unix us> if it was perhaps a holding
-- A vote of that claim with a larger ballot belongs to a later try, and is left alone. The ballot
-- becomes the floor, so that a vote that was asked for earlier, and arrives only now, is refused. The
-- floor is kept for at least ten minutes. After that the ballot is more than a minute behind the
-- clock, and a node without a floor refuses it as well. A ballot more than two minutes ahead of this
-- clock does not become the floor: only a wrong clock causes one.
-- Returns 1 if a vote was taken back, else 0.
-- INCLUDE node:node
-- INCLUDE node:floor
local lease, floor_key = unpack(KEYS)
local value_start, ballot, ended = unpack(ARGV)
local KEEP_MS = 600000
local value, kept = call('GET', lease), call('GET', floor_key)
local last, freed = last_of(kept), 0
if value and starts_with(value, value_start) then
  local stored = string.match(value, '^%d+', #value_start + 1)
  if stored - ballot <= 0 then
    call('DEL', lease)
    call('PUBLISH', floor_key, '')
    if last_token(last) == stored then
      -- It was no holding, unless the claim was granted the lease and does not know it.
      local before = string.match(last, '^(.*)\n') or ''
      last = ended and last .. ' ' .. whole(math.max(stored, ended)) or before
    end
    freed = 1
  end
end

local now = unix_us()
local floor, till, now_ms = floor_of(kept), until_of(kept), math.floor(now / 1000)
local raises = ballot - now <= 2 * MINUTE and (not floor or ballot - floor > 0)
if raises then floor = ballot end
if raises and (not till or till - now_ms < KEEP_MS) then
  till = now_ms + KEEP_MS
  try('SET', floor_key, floor_value(floor, flag_of(kept), till, last), 'PX', KEEP_MS)
elseif floor and (raises or freed == 1) then
  try('SET', floor_key, floor_value(floor, flag_of(kept), till, last), 'KEEPTTL')
end
return freed

-- PART plant
-- Plant a lease again that its majority has just renewed, where it is missing. Only if nothing
-- happened here since: the floor is still the one that the renewal saw. The floor stays, unless the
-- token is above it.
-- KEYS: the lease, its floor, the node's marker
-- ARGV: 1 the value    2 ttl in ms    3 ms to keep the floor    4 "incumbent1 <members> "
--       5 ms for which a new node does not vote, or "-" for the longest ttl known
--       6 the floor that the renewal saw, "" for none
-- Returns 1 if it was planted, else 0.
-- INCLUDE node:node
-- INCLUDE node:floor
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

-- PART look
-- Look at a lease before waiting for its end, and mark it so that its end is published: the word
-- after the token is then 1. The mark lasts as long as the holding; each waiter runs this again
-- after it.
-- KEYS: the lease
local lease = KEYS[1]
local value = redis.call('GET', lease)
local mark = value and string.match(value, '^incumbent1 %S+ %d+ ()0 ')
if mark then
  local marked = string.sub(value, 1, mark - 1) .. '1' .. string.sub(value, mark + 1)
  redis.pcall('SET', lease, marked, 'KEEPTTL')
end
return value

-- PART promise
-- Promise to accept no earlier change of what is kept beside a lease, and tell what is there.
-- The hash: `promised`, the largest ballot that was promised; `states`, the ballots of the last few
-- changes of the state that was accepted, the newest first; `field` and its name, "<version> <value>";
-- `slot` and its name, "<until, unix ms> <claim> <token> <holder>".
-- KEYS: the hash, the node's marker, the lease
-- ARGV: 1 ballot    2 "incumbent1 <members> "    3 the longest ttl in ms    4 the entry asked for
--       5 "incumbent1 <claim> <token> " that has to hold the lease, or ""
-- Returns {states, entry or "", 1 if it holds the lease}, where the states are "0" if nothing was ever
-- changed, and "-" if the node may have forgotten: it was blank, and has accepted nothing since;
-- {'low', floor, states}, {'high', now} if it does not promise, {'members', marker}.
-- INCLUDE node:node
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

-- As for a vote: see take. A version is also above the token of the present holder, so that a
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

-- PART accept
-- Accept a change of what is kept beside a lease: see promise.
-- KEYS: the hash, the node's marker, the lease, its floor
-- ARGV: 1 ballot    2 "incumbent1 <members> "    3 the state that is changed, or "=" if all its
--       entries follow, with the states    4 "incumbent1 <claim> <token> " that has to hold the
--       lease, or ""    5 the entry that changes, or ""    6 "=" and what it becomes, or "-" to remove
--       it    7 ms to keep the state after its last slot is over    8... all entries and their values
-- Returns 1 accepted, 0 not: promised to another, or another state; -1 the claim does not hold it.
-- INCLUDE node:node
-- INCLUDE node:floor
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

-- First the write that a server out of memory refuses, while nothing has been changed.
call('HSET', hash, FIELD.promised, ballot)
if base == '=' then
  call('DEL', hash)
  for at = FIRST, #ARGV, 2 do call('HSET', hash, ARGV[at], ARGV[at + 1]) end
end
local before = call('HGET', hash, FIELD.states)
-- Keep the last eight ballots, of 16 digits and a space each.
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
