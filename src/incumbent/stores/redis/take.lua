-- Take: grants the lease, or tells why not. The first part is the uncontended path. There each
-- redis.call, and each text that is made, costs a hundredth of the whole exchange.
-- KEYS: the lease, its record, and if asked for, in this order: the line of those who wait, the
--       tombstone of the slot or those who share the lease, the list of candidates
-- ARGV: 1 "incumbent1 <claim> "    2 " <ttl, ms> <holder> <meta>"    3 ttl, ms
--       4 "<ms to keep the record> <incarnation that the asker knows> <least token of that>"
--       5 " <slot or -> <holder>"
--       If more is asked for, each "-" if not it: 6 "<inbox> <f: fair, b: not> <heartbeat, ms>
--       <holder>" to wait in line    7 ms to keep the tombstone of the slot
--       8 ms for which the asker is a candidate    9 the channel of the lease    10 with how many
--       it may be shared, 0 for any number
--       The last: until when anybody waits for the answer, unix us by this server's clock
-- Returns "incumbent1 <claim> <token>", in a list of its own if the record is not known to be of
-- that incarnation; {the same, ms left} if the claim holds the lease already; 0 if it came too
-- late; or {reason, the value that is in the way, its ms left or -1, now, place in line}.
local call, try, head, count = redis.call, redis.pcall, ARGV[1], #ARGV
local deadline = ARGV[count]
ARGV[count] = nil
local stored = call('HMGET', KEYS[2], FIELD.token, FIELD.place, FIELD.quiet_until)
local time, last_token, place, quiet_until = call('TIME'), stored[1], stored[2], stored[3]

-- Numbers stay texts: Lua writes 14 of their 16 digits. Texts of one length compare as numbers.
-- The token is the time, unless tokens are ahead of it, as in the first minute of a server.
local now = time[2]
now = time[1] .. (#now == 6 and now or string.sub('00000' .. now, -6))
-- Nobody waits for the answer any more: it lay in a buffer while this server was frozen or cut off.
if now > deadline and #now >= #deadline then return 0 end

local permits, is_quiet = ARGV[10], quiet_until and quiet_until > now
  and string.sub(quiet_until, 18) == ARGV[4] and #last_token == #now
local sharers = permits and KEYS[ARGV[6] == '-' and 3 or 4]
if is_quiet and (not ARGV[7] or permits and ARGV[8] == '-') then
  -- One more, and 0 after 19: Lua takes long to write a number.
  local digit = string.byte(place, -1)
  local next = place == '9' and '10' or '0'
  if digit < 57 then next = string.sub(place, 1, -2) .. string.char(digit + 1) end
  local token = now
  if last_token >= now then token = string.format('%.0f', last_token + 1) end
  local granted, since = head .. token, ' ' .. now
  local value, part = granted .. ' ' .. next .. since .. ARGV[2]
  if permits then
    part = token .. ' ' .. next .. since
    value = 'incumbent1 shared ' .. part .. ' ' .. ARGV[3] .. string.sub(ARGV[5], 3) .. ' ' .. permits
  end
  if call('SET', KEYS[1], value, 'NX', 'PX', ARGV[3]) then
    if permits then
      -- The first of those who share it: what is left of others was taken from them.
      call('DEL', sharers)
      call('ZADD', sharers, string.sub(now, 1, -4) + ARGV[3], string.sub(head, 12) .. token)
      call('PEXPIRE', sharers, ARGV[3])
      call('HSET', KEYS[2], FIELD.token, token, FIELD.place, next, FIELD.holding .. next,
        token .. since .. ARGV[5], FIELD.sharer .. string.sub(head, 12, -2), part .. ARGV[2])
    else
      call('HSET', KEYS[2], FIELD.token, token, FIELD.place, next, FIELD.holding .. next,
        token .. since .. ARGV[5])
    end
    return granted
  end
end

local function asked_for(argument) return argument and argument ~= '-' and argument end
local function is_of_claim(text) return string.sub(text, 1, #head) == head end

local claim, now_ms, ttl = string.sub(head, 12, -2), tonumber(string.sub(now, 1, -4)), ARGV[3]
local keep, incarnation = string.match(ARGV[4], '^(%d+) (.*)$')
local holder, least_token = string.match(ARGV[5], ' (%S*)$'), string.match(incarnation, '%d+$')
local waits, slot_keep, candidacy = asked_for(ARGV[6]), asked_for(ARGV[7]), asked_for(ARGV[8])
local slot, candidates = slot_keep and KEYS[waits and 4 or 3], candidacy and KEYS[#KEYS]
stored = call('HMGET', KEYS[2], FIELD.field_count, FIELD.turn, FIELD.incarnation, FIELD.doubts,
  FIELD.doubt .. claim)
local has_fields, turn, doubts, doubt = stored[1], stored[2], stored[4], stored[5]
local is_known = last_token and stored[3] == incarnation

if doubts then
  -- A claim that was given up in doubt gets nothing: see give.
  if doubt and doubt > now then return 0 end
  if string.sub(doubts, 1, 16) <= now then
    -- All of them are over; the next one that is noted removes them.
    call('HDEL', KEYS[2], FIELD.doubts)
    doubts = false
  end
end

-- Tokens grow, whatever the clock says. The clock of a promoted server may be behind that of the
-- master before it, hence the least token.
local token = math.max(now, least_token, last_token and last_token + 1 or 0)
token = token > tonumber(now) and string.format('%.0f', token) or now

local ahead, pass_turn, stand_in_line
if turn or waits then
  -- Only here: to make a function costs the other takes as much as a redis.call.
-- INCLUDE take:line
  local me = waits and claim .. ' ' .. waits
  if turn then
    turn = read_turn(turn)
    -- The first has to be let go before, if it is fair, or was overtaken often enough.
    ahead = not starts_with(turn.first, claim .. ' ') and turn.due > now_ms
      and (turn.overtaken >= 4 or string.match(turn.first, '^%S+ %S+ f'))
  end

  local function unwatch()
    -- Who watched has looked by now, or is the asker.
    if turn.looks <= now_ms or me and turn.watcher == name_of(me) then
      turn.watcher, turn.looks = '-', 0
    end
  end

  local function begin_turn(from)
    -- Whoever is first now has until its heartbeat after `from` (unix ms).
    turn.first = waiters(0, 0)[1]
    if not turn.first then
      call('HDEL', KEYS[2], FIELD.turn)
      return
    end
    turn.due, turn.overtaken = from + heartbeat_of(turn.first), 0
    write_turn(turn)
  end

  local function drop_silent()
    -- The first did not answer its turn. Its process loses all its places at once; it asks anew
    -- when it lives again. The asker's process lives, and loses only that place.
    local inbox = inbox_of(turn.first)
    if inbox == inbox_of(me) then
      try('ZREM', KEYS[3], turn.first)
      return
    end
    if starts_with(turn.watcher, inbox .. '/') then turn.watcher, turn.looks = '-', 0 end
    for _, waiter in ipairs(waiters(0, -1)) do
      if inbox_of(waiter) == inbox then
        try('ZREM', KEYS[3], waiter)
        tell(waiter, 'turn', 0)
      end
    end
  end

  local function let_others_rest(left)
    -- The first looks when the lease ends, for all of them: whoever hears of it need not, and
    -- stays a candidate.
    for _, waiter in ipairs(waiters(1, 64)) do
      if tell(waiter, 'held', left) and candidacy then
        local standing, longer = string.match(waiter, ' (%S*)$'), now_ms + candidacy
        local ends = try('ZSCORE', candidates, standing)
        if type(ends) == 'string' and tonumber(ends) < longer then
          try('ZADD', candidates, string.format('%.0f', longer), standing)
        end
      end
    end
  end

  pass_turn = function(looks_in)
    -- The lease was granted while somebody waits, and may be granted again in so many ms.
    local was_first = starts_with(turn.first, claim .. ' ')
    if me then try('ZREM', KEYS[3], me) end
    unwatch()
    if me and (was_first or turn.due <= now_ms) then
      if not was_first then drop_silent() end
      begin_turn(looks_in == 0 and now_ms or now_ms + ttl)
      -- One that watches looks before the lease can end, and sees to it that the first does.
      if turn.first and looks_in == 0 then
        tell(turn.first, 'turn', 0)
      elseif turn.first and turn.watcher == '-' then
        tell(turn.first, 'look', looks_in)
      end
    else
      turn.overtaken = turn.overtaken + 1
      -- One that does not wait has no key of the line: whoever has it next drops the silent first.
      if turn.due <= now_ms then turn.due = SILENT end
      write_turn(turn)
    end
  end

  stand_in_line = function(reason, value, left)
    -- Returns the place, or nothing if it cannot be had.
    turn = turn or { watcher = '-', looks = 0 }
    unwatch()
    if turn.first and turn.due <= now_ms and (turn.first ~= me or turn.due == SILENT) then
      drop_silent()
      turn.first = nil
    end
    local added = try('ZADD', KEYS[3], 'NX', now, me)
    if type(added) ~= 'number' then return end
    call('PEXPIRE', KEYS[3], string.format('%.0f', math.max(3600000, 8 * ttl)))
    local is_new_turn = not turn.first
    if is_new_turn then begin_turn(now_ms) end
    if turn.first == me then
      local looks_in = math.min(left < 0 and 1e12 or left, tonumber(ttl))
      turn.due = now_ms + looks_in + heartbeat_of(me)
      write_turn(turn)
      -- Not when another one has just come before it: then the others need not look for long.
      -- Nor beside another client's key: there the first looks all the time, and the others do not.
      local since = value and string.match(value, '^%S+ %S+ %S+ %S+ (%d+)') or now
      if added == 0 and reason == 'held' and left > 0 and now - since > 1000000 then
        let_others_rest(left)
      end
      return 0
    end
    if is_new_turn then
      -- Another one became first just now: it has to look.
      tell(turn.first, 'turn', 0)
    elseif reason == 'line' then
      -- Who is refused for a turn looks again when that is over.
      if turn.looks == 0 and inbox_of(turn.first) ~= inbox_of(me) then
        turn.watcher, turn.looks = name_of(me), turn.due
        write_turn(turn)
      end
    elseif added == 0 and turn.looks == 0 then
      -- It watched, or looked by itself. The first looks when the lease ends.
      write_turn(turn)
      if left > 0 then tell(turn.first, 'look', left) end
    end
    return math.max(1, call('ZRANK', KEYS[3], me))
  end
end

local paused, resign, used = false, false, false
if has_fields then
  paused, resign = unpack(call('HMGET', KEYS[2], FIELD.put .. 'pause', FIELD.put .. 'resign'))
end
if slot then
  used = call('GET', slot)
  if used and is_of_claim(used) then used = false end
end

local function share(next, mine, is_first)
  -- Others see one lease, which lasts as long as the longest of those who share it. It is written
  -- first: a server out of memory refuses that, and then nothing has happened.
  local value, left = string.format('incumbent1 shared %s %s %s %s %s %s', token, next, now, ttl,
    holder, permits), math.max(tonumber(ttl), is_first and 0 or call('PTTL', KEYS[1]))
  call('SET', KEYS[1], value, 'PX', left)
  -- What is left of those who hold nothing any more, for somebody deleted their lease.
  if is_first then call('DEL', sharers) end
  call('ZADD', sharers, string.format('%.0f', now_ms + ttl), mine)
  call('PEXPIRE', sharers, left)
  call('HSET', KEYS[2], FIELD.sharer .. claim, token .. ' ' .. next .. ' ' .. now .. ARGV[2])
  if permits == '0' or call('ZCARD', sharers) < tonumber(permits) then return 0 end
  return call('ZRANGE', sharers, 0, 0, 'WITHSCORES')[2] - now_ms
end

local function grant(condition, is_first)
  local next, looks_in = ((place or -1) + 1) % 20, ttl
  local value = head .. token .. ' ' .. next .. ' ' .. now .. ARGV[2]
  if permits then
    looks_in = share(next, claim .. ' ' .. token, is_first)
  elseif not call('SET', KEYS[1], value, condition, 'PX', ttl) then
    return
  end
  local quiet = '0'
  if not has_fields and not doubts and not turn and (not ARGV[7] or permits) then
    -- Kept for longer than was asked, so that not every take has to say it.
    quiet = string.format('%.0f %s', now + keep * 62 - 2000, ARGV[4])
    keep = string.format('%.0f', keep * 17 / 16)
  end
  call('HSET', KEYS[2], FIELD.token, token, FIELD.place, next, FIELD.quiet_until, quiet,
    FIELD.incarnation, incarnation, FIELD.holding .. next, token .. ' ' .. now .. ARGV[5])
  if slot then call('SET', slot, value, 'PX', slot_keep) end
  if resign and (is_first or not permits) then
    -- It was meant for an earlier holder.
    call('HDEL', KEYS[2], FIELD.put .. 'resign')
    if call('HINCRBY', KEYS[2], FIELD.field_count, -1) < 1 then
      call('HDEL', KEYS[2], FIELD.field_count)
      has_fields = false
    end
  end
  if not has_fields then call('PEXPIRE', KEYS[2], keep) end
  if turn then pass_turn(looks_in) end
  if candidacy then
    try('ZREM', candidates, holder)
    call('PUBLISH', ARGV[9], '')
  end
  return is_known and head .. token or { head .. token }
end

local function forget_those_who_are_over()
  for _, member in ipairs(call('ZRANGEBYSCORE', sharers, '-inf', now_ms)) do
    call('ZREM', sharers, member)
    call('HDEL', KEYS[2], FIELD.sharer .. string.sub(member, 1, #claim))
  end
end

local function share_again(mine)
  -- The claim shares it already: the same grant, unless that is from before a promotion.
  local own = string.match(mine, '^%d+')
  local ends = call('ZSCORE', sharers, claim .. ' ' .. own)
  if not ends then return end
  if tonumber(own) < tonumber(least_token) then
    call('ZREM', sharers, claim .. ' ' .. own)
    return grant('XX', false)
  end
  local left = math.max(ends - now_ms, tonumber(ttl))
  call('ZADD', sharers, string.format('%.0f', now_ms + left), claim .. ' ' .. own)
  for _, key in ipairs({ KEYS[1], sharers }) do
    if call('PTTL', key) < left then call('PEXPIRE', key, left) end
  end
  return { head .. own, left }
end

local value, full, others, is_first = false, false, false, true
if permits then
  value = call('GET', KEYS[1])
  if value and string.sub(value, 1, 18) == 'incumbent1 shared ' then
    forget_those_who_are_over()
    local mine = call('HGET', KEYS[2], FIELD.sharer .. claim)
    local again = mine and share_again(mine)
    if again then return again end
    is_first = false
    others = string.match(value, '%d+$') ~= permits
    full = not others and permits ~= '0' and call('ZCARD', sharers) >= tonumber(permits)
    if not others and not full then value = false end
  end
end
if not paused and not used and not ahead and not value then
  local granted = grant('NX', is_first)
  if granted then return granted end
end
if not permits then value = call('GET', KEYS[1]) end
if value and is_of_claim(value) then
  if string.match(value, '^%d+', #head + 1) - least_token < 0 then
    -- Granted before a promotion, with a token that may be too small: it is granted anew.
    return grant('XX')
  end
  local left = call('PTTL', KEYS[1])
  if left < tonumber(ttl) then
    call('PEXPIRE', KEYS[1], ttl)
    left = tonumber(ttl)
  end
  return { string.match(value, '^%S+ %S+ %d+'), left }
end
local state = value and string.match(value, '^incumbent1 (%S+) ')
if state == 'reserved' and string.match(value, ' (%S*)$') == holder then
  -- Reserved for the asker: as good as free.
  if not paused and not used then return grant('XX', true) end
  value, ahead = false, false
end

-- Refused. That the lists cannot be written decides nothing about the answer.
if candidacy then
  try('ZREMRANGEBYSCORE', candidates, '-inf', now_ms)
  local until_ms = string.format('%.0f', now_ms + candidacy)
  if type(try('ZADD', candidates, until_ms, holder)) == 'number' then
    call('ZREMRANGEBYRANK', candidates, 0, -101)
    if call('PTTL', candidates) < tonumber(candidacy) then
      call('PEXPIRE', candidates, candidacy)
    end
  end
end
local is_closed = state == 'closed' or state == 'reserved'
local reason, left = others and 'permits' or is_closed and state or 'held', -1
if full or others then
  left = call('ZRANGE', sharers, 0, 0, 'WITHSCORES')[2] - now_ms
elseif value and not (is_closed and (used or paused)) then
  left = call('PTTL', KEYS[1])
elseif used then
  reason, value, left = 'slot', used, call('PTTL', slot)
elseif paused then
  reason, value = 'paused', paused
else
  reason, value, left = 'line', turn.first, turn.due - now_ms
end
-- Waiting does not help against another number of permits. Without a token and a field the record
-- expired during a long holding: the next renewal brings it back.
local stands = waits and not others and (last_token or has_fields)
local in_line = stands and stand_in_line(reason, value, left) or nil
return { reason, value, left, now, in_line }

-- PART checking
-- A take, and a check of the server in the same step.
-- KEYS: as take's, and the marker    ARGV: as take's
-- Returns what take returns, the marker, INFO replication, TIME, INFO memory.
local marker = table.remove(KEYS)
local function take()
-- INCLUDE take
end
local outcome, try = take(), redis.pcall
return {outcome, try('GET', marker), try('INFO', 'replication'), try('TIME'), try('INFO', 'memory')}

-- PART line
-- Those who wait for the lease: KEYS[3] is a sorted set of waiters by their time of arrival, each
-- "<claim> <inbox> <f: fair, b: not> <heartbeat, ms> <holder>". Names a waiter: "<inbox>/<id>".
-- SILENT: the end of the turn of a first waiter that did not use it, when another was granted the
-- lease since.
local SILENT = 0
local function id_of(waiter) return string.sub(waiter, 1, 16) end
local function inbox_of(waiter) return string.match(waiter, '^%S+ (%S+)') end
local function heartbeat_of(waiter) return tonumber(string.match(waiter, '^%S+ %S+ %S+ (%d+)')) end
local function name_of(waiter) return inbox_of(waiter) .. '/' .. id_of(waiter) end
local function starts_with(text, start) return string.sub(text, 1, #start) == start end
local function waiters(from, to) return try('ZRANGE', KEYS[3], from, to) end

local function tell(waiter, word, ms)
  -- True if its process is connected.
  local message = string.format('%s %s %.0f', word, id_of(waiter), ms)
  local receivers = try('PUBLISH', 'incumbent:to:' .. inbox_of(waiter), message)
  return type(receivers) == 'number' and receivers > 0
end

local function read_turn(text)
  local due, overtaken, watcher, looks, first =
    string.match(text, '^(%d+) (%d+) (%S+) (%d+) (.*)$')
  return { due = tonumber(due), overtaken = tonumber(overtaken), watcher = watcher,
    looks = tonumber(looks), first = first }
end

local function write_turn(turn)
  return try('HSET', KEYS[2], FIELD.turn, string.format('%.0f %.0f %s %.0f %s', turn.due,
    turn.overtaken, turn.watcher, turn.looks, turn.first), FIELD.quiet_until, '0')
end
