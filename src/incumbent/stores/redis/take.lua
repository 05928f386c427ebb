-- Take. The first part is the uncontended path: there each redis.call, and each text that is made,
-- costs a hundredth of the whole exchange.
-- KEYS: the lease, its companion, the line of those who wait if the asker would, the tombstone of
--       the slot if one is asked for, the list of candidates if the asker stands by
-- ARGV: 1 "incumbent2 <claim> "    2 " <ttl ms> <holder> <meta>"   3 ttl in ms
--       4 "<ms to keep the companion> <incarnation that the asker knows> <least token of that>"
--       5 " <slot or -> <holder>"
--       If more is wanted, each "-" if not it: 6 "<inbox> <f if fair, else b> <heartbeat ms>
--       <holder>" to wait in line   7 ms to keep the slot's tombstone   8 ms of the candidacy
--       9 channel
--       The last, which is taken off first: until when anybody waits for the answer, unix us by this
--       server's clock
-- Returns the grant, in a list of its own where the companion is not known to be of that
-- incarnation; 0 if it came too late; or a list that tells why not.
-- The line: a sorted set of "<claim> <ARGV[6]>" by arrival.
-- The fields of the companion, for all scripts:
--   t  the last token    n  its place in the history, 0 to 19
--   h<place>  a holding: "<token> <since, unix us> <slot or -> <holder>"
--   e<place>  when that was given back: "<unix s> <us of that second>"
--   f:<name>  a field that was put: "<version> <value>"    v  the last version    k  how many there
--      are: while there is one, the companion has no end
--   q  there while somebody waits: "<until when it is the first one's turn, unix ms> <how often it
--      was overtaken> <who watches> <until when that one looks, unix ms> <the first>". Who watches
--      ("<inbox>/<id>" of one in line, or "-") was told to look, in case the first stays silent.
--   x  0 if there may be a `q`, `k` or `d`: who gives it one says so here. Or "<until when, unix us>
--      <ARGV[4]>": until then it need not be told for how long to stay.
--   i  of which incarnation the companion is known to be
--   d:<claim>  until when a claim that was given up in doubt is refused, unix us
--   d  "<until when the last of them is> <when those that are over were last removed>"
local call, head, count = redis.call, ARGV[1], #ARGV
local till = ARGV[count]
ARGV[count] = nil
local kept, time = call('HMGET', KEYS[2], 't', 'n', 'x'), call('TIME')

-- Numbers stay texts: Lua writes 14 of their 16 digits. Texts of one length compare as numbers.
local now, last, calm = time[2], kept[1], kept[3]
now = time[1] .. (#now == 6 and now or string.sub('00000' .. now, -6))
-- Nobody waits for the answer any more: it lay in a buffer while this server was frozen or cut off.
if now > till and #now >= #till then return 0 end

if calm and calm > now and string.sub(calm, 18) == ARGV[4] and not ARGV[7]
    and last < now and #last == #now then
  -- One more, and 0 after 19: Lua takes long to write a number.
  local place = kept[2]
  local digit = string.byte(place, -1)
  if digit < 57 then place = string.sub(place, 1, -2) .. string.char(digit + 1)
  else place = place == '9' and '10' or '0' end
  local granted, since = head .. now, ' ' .. now
  if call('SET', KEYS[1], granted .. ' ' .. place .. since .. ARGV[2], 'NX', 'PX', ARGV[3]) then
    call('HSET', KEYS[2], 't', now, 'n', place, 'h' .. place, now .. since .. ARGV[5])
    return granted
  end
end

local keeping, mark = ARGV[4], string.match(ARGV[4], ' (.*)$')
ARGV[4] = string.match(keeping, '^%d+')
kept = call('HMGET', KEYS[2], 't', 'n', 'k', 'q', 'd', 'i', 'd:' .. string.sub(head, 12, -2))
local known = last and kept[6] == mark
local given_up = kept[5]
if given_up then
  if kept[7] and kept[7] > now then return 0 end
  if string.sub(given_up, 1, 16) <= now then
    -- All of them are over; the next one that is noted removes them (see give).
    call('HDEL', KEYS[2], 'd')
    given_up = false
  end
end
-- The floor of a promoted server: its clock may be behind that of the master before it.
local token = math.max(now, string.match(mark, '%d+$'), last and last + 1 or 0)
token = token > tonumber(now) and string.format('%.0f', token) or now

local line = ARGV[6] and ARGV[6] ~= '-' and KEYS[3]
local slot = ARGV[7] and ARGV[7] ~= '-' and KEYS[line and 4 or 3]
local candidacy = ARGV[8] and ARGV[8] ~= '-' and ARGV[8]
local paused, resign, used, ahead = false, false, false, false
if kept[3] then
  local fields = call('HMGET', KEYS[2], 'f:pause', 'f:resign')
  paused, resign = fields[1], fields[2]
end
if slot then
  used = call('GET', slot)
  if used and string.sub(used, 1, #head) == head then used = false end
end
local claim, at, first, due, overtaken, watcher, looks
if kept[4] or line then
  claim, at = string.sub(head, 12, -2), tonumber(string.sub(now, 1, -4))
end
if kept[4] then
  due, overtaken, watcher, looks, first = string.match(kept[4], '^(%d+) (%d+) (%S+) (%d+) (.*)$')
  -- Of a version before this one, whose processes wait there.
  if not due then return {'held', 'incumbent1 ', -1, now} end
  due, overtaken, looks = tonumber(due), tonumber(overtaken), tonumber(looks)
  ahead = first and string.match(first, '^%S+') ~= claim and due > at
    and (overtaken >= 4 or string.match(first, '^%S+ %S+ f'))
end

local function helpers()
  -- Made only where somebody waits: each function costs the uncontended path as much as a call.
  local own = line and string.match(ARGV[6], '^%S+')
  local me = line and own .. '/' .. string.sub(claim, 1, 16)
  local function tell(waiter, what, ms)
    local whose, inbox = string.match(waiter, '^(%S+) (%S+)')
    local said = what .. ' ' .. string.sub(whose, 1, 16) .. ' ' .. ms
    return redis.pcall('PUBLISH', 'incumbent:to:' .. inbox, said)
  end
  local function note()
    local turn = string.format('%.0f %.0f %s %.0f ', due, overtaken, watcher, looks) .. first
    call('HSET', KEYS[2], 'q', turn, 'x', '0')
  end
  local function begin_turn(from)
    -- Whoever is first now has until its heartbeat after `from` (unix ms).
    first = redis.pcall('ZRANGE', line, 0, 0)[1]
    if not first then
      call('HDEL', KEYS[2], 'q')
      return
    end
    due, overtaken = from + string.match(first, '^%S+ %S+ %S+ (%d+)'), 0
    note()
  end
  local function drop_silent()
    -- The first did not answer its turn. Its process loses all its places at once; it asks anew
    -- when it lives again. Only that place, if the process lives, for it is the one that asks.
    local inbox = string.match(first, '^%S+ (%S+)')
    if inbox == own then
      redis.pcall('ZREM', line, first)
      return
    end
    if string.match(watcher, '^[^/]+') == inbox then watcher, looks = '-', 0 end
    for _, waiter in ipairs(redis.pcall('ZRANGE', line, 0, -1)) do
      if string.match(waiter, '^%S+ (%S+)') == inbox then
        redis.pcall('ZREM', line, waiter)
        tell(waiter, 'turn', 0)
      end
    end
  end
  local function came()
    -- Granted while somebody waits.
    local turn = string.match(first, '^%S+') == claim
    if line then redis.pcall('ZREM', line, claim .. ' ' .. ARGV[6]) end
    if looks <= at or watcher == me then watcher, looks = '-', 0 end
    if line and (turn or due <= at) then
      if not turn then drop_silent() end
      begin_turn(at + ARGV[3])
      -- One that watches looks before the lease can end, and sees to it that the first does.
      if first and watcher == '-' then tell(first, 'look', ARGV[3]) end
    else
      overtaken = overtaken + 1
      note()
    end
  end
  return { me = me, own = own, tell = tell, note = note, begin_turn = begin_turn,
    drop_silent = drop_silent, came = came }
end

local how, value, ours = 'NX'
repeat
  if not paused and not used and not ahead then
    local place = ((kept[2] or -1) + 1) % 20
    value = head .. token .. ' ' .. place .. ' ' .. now .. ARGV[2]
    if call('SET', KEYS[1], value, how, 'PX', ARGV[3]) then
      local keep, calm_till = ARGV[4], '0'
      if not kept[3] and not given_up and not first and not ARGV[7] then
        -- For longer than was asked, so that it need not be said at every take.
        keep = string.format('%.0f', keep * 17 / 16)
        calm_till = string.format('%.0f %s', now + ARGV[4] * 62 - 2000, keeping)
      end
      call('HSET', KEYS[2], 't', token, 'n', place, 'x', calm_till, 'i', mark, 'h' .. place,
        token .. ' ' .. now .. ARGV[5])
      if slot then call('SET', slot, value, 'PX', ARGV[7]) end
      -- A request to resign was meant for an earlier holder.
      if resign then
        call('HDEL', KEYS[2], 'f:resign')
        if call('HINCRBY', KEYS[2], 'k', -1) < 1 then
          call('HDEL', KEYS[2], 'k')
          kept[3] = false
        end
      end
      if not kept[3] then call('PEXPIRE', KEYS[2], keep) end
      if first then helpers().came() end
      if candidacy then
        redis.pcall('ZREM', KEYS[#KEYS], string.match(ARGV[5], ' (%S*)$'))
        call('PUBLISH', ARGV[9], '')
      end
      return known and head .. token or {head .. token}
    end
  end
  value = call('GET', KEYS[1])
  -- What is reserved for the asker is as good as free: once more, in its place.
  ours = value and string.sub(value, 1, 20) == 'incumbent2 reserved '
    and string.match(value, ' (%S*)$') == string.match(ARGV[5], ' (%S*)$')
  if ours then ahead = false end
  how = ours and not paused and not used and 'XX'
  if value and string.sub(value, 1, #head) == head
      and string.match(value, '^%d+', #head + 1) - string.match(mark, '%d+$') < 0 then
    -- This claim was granted before a promotion, with a token that may be too small: it is
    -- granted anew.
    paused, used, ahead, how = false, false, false, 'XX'
  end
until not how

if value and string.sub(value, 1, #head) == head then
  local left, ttl = call('PTTL', KEYS[1]), tonumber(ARGV[3])
  if left < ttl then
    call('PEXPIRE', KEYS[1], ttl)
    left = ttl
  end
  return {string.match(value, '^%S+ %S+ %d+'), left}
end

-- Refused. The lists are no decision about this answer: that they cannot be written changes none.
if candidacy then
  local list, holder = KEYS[#KEYS], string.match(ARGV[5], ' (%S*)$')
  redis.pcall('ZREMRANGEBYSCORE', list, '-inf', string.sub(now, 1, -4))
  local till = string.format('%.0f', string.sub(now, 1, -4) + candidacy)
  if type(redis.pcall('ZADD', list, till, holder)) == 'number' then
    call('ZREMRANGEBYRANK', list, 0, -101)
    if call('PTTL', list) < tonumber(candidacy) then call('PEXPIRE', list, candidacy) end
  end
end
local what = value and string.match(value, '^incumbent2 (%S+) ')
local closed = what == 'closed' or what == 'reserved'
local answer
if value and not (closed and paused) and not ours then
  answer = {closed and what or 'held', value, call('PTTL', KEYS[1]), now}
elseif paused then
  answer = {'paused', paused, -1, now}
elseif ahead then
  answer = {'line', first, due - at, now}
else
  answer = {'slot', used, call('PTTL', slot), now}
end

-- Without `t` the companion expired during a long holding: the next renewal brings it back.
if line and last then
  local with = helpers()
  local me, new = claim .. ' ' .. ARGV[6], false
  if not watcher or looks <= at or watcher == with.me then watcher, looks = '-', 0 end
  if first and first ~= me and due <= at then
    with.drop_silent()
    first = false
  end
  local added = redis.pcall('ZADD', line, 'NX', now, me)
  if type(added) == 'number' then
    call('PEXPIRE', line, string.format('%.0f', math.max(3600000, 8 * ARGV[3])))
    if not first then
      with.begin_turn(at)
      new = true
    end
    if first == me then
      local left = math.min(answer[3] < 0 and 1e12 or answer[3], tonumber(ARGV[3]))
      due = at + left + string.match(me, '^%S+ %S+ %S+ (%d+)')
      with.note()
      answer[5] = 0
      -- It looks for all of them: whoever hears of it need not, and stays a candidate. But not
      -- when another one has just come before it: then the others need not look for long.
      local others = {}
      if added == 0 and answer[1] == 'held' and answer[3] > 0
          and now - (string.match(value, '^%S+ %S+ %S+ %S+ (%d+)') or 0) > 1000000 then
        others = redis.pcall('ZRANGE', line, 1, 64)
      end
      for _, other in ipairs(others) do
        local heard = with.tell(other, 'held', answer[3])
        if candidacy and type(heard) == 'number' and heard > 0 then
          local till = string.format('%.0f', at + candidacy)
          redis.pcall('ZADD', KEYS[#KEYS], 'XX', till, string.match(other, ' (%S*)$'))
        end
      end
    else
      if new then
        -- Another one became first just now: it has to look.
        with.tell(first, 'turn', 0)
      elseif answer[1] == 'line' then
        -- Who is refused for a turn looks again when that is over.
        if looks == 0 and string.match(first, '^%S+ (%S+)') ~= with.own then
          watcher, looks = with.me, due
          with.note()
        end
      elseif added == 0 and looks == 0 then
        -- It watched, or looked by itself. The first looks when the lease ends.
        with.note()
        if answer[3] > 0 then with.tell(first, 'look', answer[3]) end
      end
      answer[5] = math.max(1, call('ZRANK', line, me))
    end
  end
end
return answer
