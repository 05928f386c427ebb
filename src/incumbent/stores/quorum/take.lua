-- One node's vote. It is given if all of this is so, in this order:
-- - the node belongs to the asker's quorum, and is no newer than ARGV[7] says: a blank one is born now;
-- - nobody else has the lease here, and the name is neither paused nor closed;
-- - the ballot is above the floor, the largest ballot that was voted for here. Where none is kept,
--   the floor is a minute before the node's clock. It is never less than the node's birth and a
--   minute: what it voted for before it lost its data was not further ahead of its clock;
-- - the ballot is at most a minute ahead of the clock. More than two minutes ahead the clock must
--   have been set back, or be wrong: then it may be a second above the last vote.
-- What the claim has here already is not voted for again: its ballot is told, and raised if asked.
-- An uncontended vote is what is fast: each redis.call costs about a microsecond, and each byte of a
-- text that Lua has not seen before one nanosecond.
-- KEYS: the lease, its floor, the node's marker, its past, the hash of its fields (see promise.lua),
--       and the list of candidates if one is kept
-- ARGV: 1 "incumbent1 <claim> "    2 ballot    3 " <ttl ms> <holder> <meta>"    4 ttl in ms
--       5 ms to keep the floor    6 the marker of a founded node: "incumbent2 <members> 0 <longest>"
--       7 ms for which a new node does not vote, or "-" for the longest ttl known    8 " <holder>"
--       If more is wanted: 9 "+" to raise what the claim has here, else "-"    10 ms of a candidacy
-- Returns "incumbent1 <claim> <ballot>" for a fresh vote; {that, ms left} for a claim that was here;
-- {kind, value, ms left, now, floor} for no vote.
--
-- The marker: "incumbent2 <members> <born, unix us> <the longest ttl that was asked for here, ms>".
--
-- The floor's key: "<floor, 16 digits> <s> <until, unix ms, 13 digits> <last>". `s` is "-" if there
-- is no word to who holds or takes it (pause, resign), "+" if there may be one. `until` is when the key expires. `last` are the last few
-- holdings, a line each, before they move to the past together: "<token> <holder>", with
-- " <ended, unix us>" if it was given.
local call, head, ballot = redis.call, ARGV[1], ARGV[2]
local kept, marker, time = call('GET', KEYS[2]), call('GET', KEYS[3]), call('TIME')
local now = time[1] * 1000000 + time[2]

local born = 0

if marker ~= ARGV[6] then
  local members, longest = string.match(ARGV[6], '^(%S+ %S+ )0 (%d+)$')
  if not marker then
    marker = members .. string.format('%.0f ', now) .. longest
    call('SET', KEYS[3], marker)
  end
  local theirs, since, most = string.match(marker, '^(%S+ %S+ )(%d+) (%d+)$')
  if theirs ~= members then return {'members', marker, -1, string.format('%.0f', now), ''} end
  if longest - most > 0 then
    most = longest
    call('SET', KEYS[3], members .. since .. ' ' .. most)
  end
  born = since + 0
  local young = born + (ARGV[7] == '-' and most or ARGV[7]) * 1000 - now
  if young > 0 then
    return {'young', marker, math.ceil(young / 1000), string.format('%.0f', now), ''}
  end
end

local floor, switched = kept and string.sub(kept, 1, 16) + 0 or now - 60000000, true
if kept then switched = string.byte(kept, 18) == 43 end
if born > 0 and floor < born + 60000000 then floor = born + 60000000 end
local ahead, admits = ballot - now, 'low'
if ballot - floor > 0 then
  admits = ahead <= 60000000 or ahead > 120000000 and kept and ballot - floor <= 1000000
    and tonumber(string.match(string.sub(kept, 34), '(%d+) [^\n]*$')) == floor or 'high'
end
local paused, resign = false, false
if switched then
  local fields = call('HMGET', KEYS[5], 'f:pause', 'f:resign')
  paused, resign, switched = fields[1], fields[2], fields[1] or fields[2]
end

local how, value, ours = 'NX'
repeat
  if admits == true and not paused then
    if call('SET', KEYS[1], head .. ballot .. ' 0 ' .. ballot .. ARGV[3], how, 'PX', ARGV[4]) then
      local last, till, first = kept and string.sub(kept, 34) or '', kept and string.sub(kept, 20, 32), false
      if last ~= '' then last = last .. '\n' end
      if #last > 240 then
        -- The past is for people: that it cannot be written changes no vote.
        local length = redis.pcall('APPEND', KEYS[4], last)
        first = length == #last
        if type(length) == 'number' and length > 3000 and length > 25 * (#ARGV[8] + 34) then
          local text, ends = call('GET', KEYS[4]), {}
          for at in string.gmatch(text, '()\n') do ends[#ends + 1] = at end
          if #ends > 20 then
            call('SET', KEYS[4], string.sub(text, ends[#ends - 20] + 1), 'KEEPTTL')
          end
        end
        last = ''
      end
      -- A request to resign was meant for an earlier holder.
      if resign and ballot - string.match(resign, '^%d+') > 0 then switched = false end
      -- What is ahead of the clock is remembered for longer: until a minute before the clock is
      -- above it.
      local keep = ahead > 60000000 and math.ceil(ARGV[5] + ahead / 1000) or ARGV[5]
      local new, flag = ballot, switched and ' + ' or ' - '
      if #ballot ~= 16 then new = string.format('%016.0f', ballot) end
      local still = till and till * 1000 - now >= keep * 1000
      if still then
        call('SET', KEYS[2], new .. flag .. till .. ' ' .. last .. ballot .. ARGV[8], 'KEEPTTL')
      else
        -- A quarter longer than has to be: the end of a key costs more than the key.
        keep = math.ceil(keep * 1.25)
        till = string.format('%013.0f ', math.floor(now / 1000) + keep)
        call('SET', KEYS[2], new .. flag .. till .. last .. ballot .. ARGV[8], 'PX', keep)
      end
      if first or not still then call('PEXPIRE', KEYS[4], math.ceil(ARGV[5] * 1.25)) end
      if ARGV[10] then
        redis.pcall('ZREM', KEYS[6], string.sub(ARGV[8], 2))
        call('PUBLISH', KEYS[2], '')
      end
      return head .. ballot
    end
  end
  value = call('GET', KEYS[1])
  -- What is reserved for the asker is as good as free: once more, in its place.
  ours = value and string.sub(value, 1, 20) == 'incumbent1 reserved '
    and string.match(value, ' %S*$') == ARGV[8]
  how = how == 'NX' and ours and admits == true and not paused and 'XX'
until not how

now = string.format('%.0f', now)
if value and string.sub(value, 1, #head) == head then
  local stored, left, ttl = string.match(value, '^%d+', #head + 1), call('PTTL', KEYS[1]), ARGV[4] + 0
  if ARGV[9] == '+' and stored ~= ballot then
    if admits ~= true then return {admits, value, left, now, string.format('%.0f', floor)} end
    call('SET', KEYS[1], head .. ballot .. string.sub(value, #head + #stored + 1), 'KEEPTTL')
    -- The last holding is this one: it has its new token, and goes on.
    local before = kept and string.match(kept, '^.*\n', 34) or ''
    local keep = math.ceil(ARGV[5] * 1.25)
    local till = string.format(' %013.0f ', math.floor(now / 1000) + keep)
    local new = string.format('%016.0f', ballot) .. (switched and ' +' or ' -') .. till
    call('SET', KEYS[2], new .. before .. ballot .. ARGV[8], 'PX', keep)
    call('PEXPIRE', KEYS[4], keep)
    stored = ballot
  end
  if left < ttl then
    call('PEXPIRE', KEYS[1], ttl)
    left = ttl
  end
  return {head .. stored, left}
end

local what = value and string.match(value, '^incumbent1 (%S+) ')
local closed = what == 'closed' or what == 'reserved'
local kind = not paused and admits or 'paused'
if value and not (closed and paused) and not ours then kind = closed and what or 'held' end
-- The list is for people: that it cannot be written changes no answer.
if ARGV[10] and kind ~= 'low' and kind ~= 'high' then
  local line, at = KEYS[6], string.sub(now, 1, -4)
  redis.pcall('ZREMRANGEBYSCORE', line, '-inf', at)
  local till = string.format('%.0f', at + ARGV[10])
  if type(redis.pcall('ZADD', line, till, string.sub(ARGV[8], 2))) == 'number' then
    call('ZREMRANGEBYRANK', line, 0, -101)
    if call('PTTL', line) < tonumber(ARGV[10]) then call('PEXPIRE', line, ARGV[10]) end
  end
end
if kind == 'paused' then return {kind, paused, -1, now, string.format('%.0f', floor)} end
return {kind, value or '', value and call('PTTL', KEYS[1]) or -1, now, string.format('%.0f', floor)}
