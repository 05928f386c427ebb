-- One node's vote. It is given if all of this is so, in this order:
-- - the node belongs to the asker's quorum, and is as old as `quarantine` says: a blank one is born now;
-- - nobody else has the lease here, and the name is neither paused nor closed;
-- - the ballot is above the floor. Where none is kept, the floor is a minute before the node's clock.
--   It is never less than the node's birth and a minute: what it voted for before it lost its data
--   was not further ahead of its clock;
-- - the ballot is at most a minute ahead of the clock. More than two minutes ahead the clock must
--   have been set back, or be wrong: then it may be a second above the last vote.
-- What the claim has here already is not voted for again: its ballot is returned, and raised if asked.
-- KEYS: the lease, its floor, the node's marker, its past, the hash of its fields (see promise.lua),
--       and the list of candidates if one is kept
-- ARGV: 1 "incumbent1 <claim> "    2 ballot    3 " <ttl ms> <holder> <meta>"    4 ttl in ms
--       5 ms to keep the floor    6 the marker of a founded node: "incumbent2 <members> 0 <longest>"
--       7 ms for which a new node does not vote, or "-" for the longest ttl known    8 " <holder>"
--       If more is wanted: 9 "+" to raise what the claim has here, else "-"    10 ms of a candidacy
-- Returns "incumbent1 <claim> <ballot>" for a fresh vote; {that, ms left} for a claim that was here;
-- {kind, value, ms left, now, floor} for no vote.
-- INCLUDE node
-- INCLUDE floor
local lease, floor_key, marker_key, past, fields, candidates = unpack(KEYS)
local head, ballot, rest, ttl, keep, founded, quarantine, holder, raises, candidacy = unpack(ARGV)
local kept, marker, now = call('GET', floor_key), call('GET', marker_key), unix_us()

local function no(kind, value, left, floor)
  return { kind, value, left, whole(now), floor and whole(floor) or '' }
end

-- A founded node is told by its marker as a whole: nearly always.
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

local floor, ahead, admits = kept and floor_of(kept) + 0 or now - MINUTE, ballot - now, 'low'
if born > 0 and floor < born + MINUTE then floor = born + MINUTE end
if ballot - floor > 0 then
  local follows_a_wrong_clock = ahead > 2 * MINUTE and kept and ballot - floor <= 1000000
    and tonumber(last_token(last_of(kept))) == floor
  admits = ahead <= MINUTE or follows_a_wrong_clock or 'high'
end
local paused, resign, flag = false, false, flag_of(kept)
if flag == ' + ' then
  paused, resign = unpack(call('HMGET', fields, FIELD.pause, FIELD.resign))
  flag = (paused or resign) and ' + ' or ' - '
end

local function move_to_past(last)
  -- The past is for people: that it cannot be written changes no vote. True if it was empty.
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
  -- What is ahead of the clock is remembered for longer: until a minute before the clock is above it.
  local needed = ahead > MINUTE and math.ceil(keep + ahead / 1000) or keep
  local lasts = till and till * 1000 - now >= needed * 1000
  if lasts then
    call('SET', floor_key, floor_value(ballot, flag, till, last), 'KEEPTTL')
  else
    -- A quarter longer than has to be: the end of a key costs more than the key.
    needed = math.ceil(needed * 1.25)
    till = math.floor(now / 1000) + needed
    call('SET', floor_key, floor_value(ballot, flag, till, last), 'PX', needed)
  end
  if is_new_past or not lasts then call('PEXPIRE', past, math.ceil(keep * 1.25)) end
end

local may_vote, how, value, is_reserved = admits == true and not paused, 'NX'
repeat
  if may_vote
      and call('SET', lease, head .. ballot .. ' 0 ' .. ballot .. rest, how, 'PX', ttl) then
    note_vote()
    if candidacy then
      try('ZREM', candidates, string.sub(holder, 2))
      call('PUBLISH', floor_key, '')
    end
    return head .. ballot
  end
  value = call('GET', lease)
  -- What is reserved for the asker is as good as free: once more, in its place.
  is_reserved = value and starts_with(value, 'incumbent1 reserved ')
    and string.match(value, ' %S*$') == holder
  how = how == 'NX' and is_reserved and may_vote and 'XX'
until not how

if value and starts_with(value, head) then
  local stored, left = string.match(value, '^%d+', #head + 1), call('PTTL', lease)
  if raises == '+' and stored ~= ballot then
    if admits ~= true then return no(admits, value, left, floor) end
    call('SET', lease, head .. ballot .. string.sub(value, #head + #stored + 1), 'KEEPTTL')
    -- The last holding is this one: it has its new token, and goes on.
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
  return { head .. stored, left }
end

local what = value and string.match(value, '^incumbent1 (%S+) ')
local is_closed = what == 'closed' or what == 'reserved'
local kind = paused and 'paused' or admits
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
