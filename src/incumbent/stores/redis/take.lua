-- Take. The first part is the uncontended path: there each redis.call, and each text that is made,
-- costs a hundredth of the whole exchange.
-- KEYS: the lease, its companion, the line of those who wait if the asker would, the tombstone of
--       the slot if one is asked for, the list of candidates if the asker stands by
-- ARGV: 1 "incumbent1 <claim> "    2 " <ttl ms> <holder> <meta>"   3 ttl in ms
--       4 ms to keep the companion 5 " <slot or -> <holder>"
--       If more is wanted, each "-" if not it: 6 "<inbox> <f if fair, else b> <heartbeat ms> <h if
--       it may be handed over, else ->" to wait in line   7 ms to keep the slot's tombstone
--       8 ms of the candidacy   9 channel
-- The line: a sorted set of "<claim> <ARGV[6]> <ARGV[4]><ARGV[2]>" by arrival. The companion's `q`,
-- there while somebody waits: "<until when it is the first one's turn, unix ms> <how often it was
-- overtaken> <the first>".
-- The companion's `x`: 0 if it may have a `q` or a `k` (see put): who gives it one says so here. Or
-- "<until when, unix us> <ARGV[4]>": until then it need not be told for how long to stay.
local call, head = redis.call, ARGV[1]
local kept, time = call('HMGET', KEYS[2], 't', 'n', 'x'), call('TIME')

-- Numbers stay texts: Lua writes 14 of their 16 digits. Texts of one length compare as numbers.
local now, last, calm = time[2], kept[1], kept[3]
now = time[1] .. (#now == 6 and now or string.sub('00000' .. now, -6))

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

kept = call('HMGET', KEYS[2], 't', 'n', 'k', 'q')
local token = now
if last and (last >= now or #last ~= #now) then
  token = string.format('%.0f', math.max(now, last + 1))
end

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
local claim, at, first, due, overtaken
if kept[4] or line then
  claim, at = string.sub(head, 12, -2), tonumber(string.sub(now, 1, -4))
end
if kept[4] then
  due, overtaken, first = string.match(kept[4], '^(%d+) (%d+) (.*)$')
  due, overtaken = tonumber(due), tonumber(overtaken)
  ahead = string.match(first, '^%S+') ~= claim and due > at
    and (overtaken >= 4 or string.match(first, '^%S+ %S+ f'))
end

local function helpers()
  -- Made only where somebody waits: each function costs the uncontended path as much as a call.
  local function tell(waiter, what, ms)
    local whose, inbox = string.match(waiter, '^(%S+) (%S+)')
    local said = what .. ' ' .. string.sub(whose, 1, 16) .. ' ' .. ms
    return redis.pcall('PUBLISH', 'incumbent:to:' .. inbox, said)
  end
  local function begin_turn(from)
    -- Whoever is first now has until its heartbeat after `from` (unix ms).
    local waiter = redis.pcall('ZRANGE', line, 0, 0)[1]
    if waiter then
      local most = string.match(waiter, '^%S+ %S+ %S+ (%d+)')
      local turn = string.format('%.0f', from + most) .. ' 0 ' .. waiter
      call('HSET', KEYS[2], 'q', turn, 'x', '0')
    else
      call('HDEL', KEYS[2], 'q')
    end
    return waiter
  end
  local function came()
    -- Granted while somebody waits.
    local turn = string.match(first, '^%S+') == claim
    if line then
      redis.pcall('ZREM', line, claim .. ' ' .. ARGV[6] .. ' ' .. ARGV[4] .. ARGV[2])
    end
    if line and (turn or due <= at) then
      if not turn then redis.pcall('ZREM', line, first) end
      local waiter = begin_turn(at + ARGV[3])
      if waiter then tell(waiter, 'look', ARGV[3]) end
    else
      call('HSET', KEYS[2], 'q', string.format('%.0f %.0f ', due, overtaken + 1) .. first)
    end
  end
  return tell, begin_turn, came
end

local how, value, ours = 'NX'
repeat
  if not paused and not used and not ahead then
    local place = ((kept[2] or -1) + 1) % 20
    value = head .. token .. ' ' .. place .. ' ' .. now .. ARGV[2]
    if call('SET', KEYS[1], value, how, 'PX', ARGV[3]) then
      local keep, till = ARGV[4], '0'
      if not kept[3] and not first and not ARGV[7] then
        -- For longer than was asked, so that it need not be said at every take.
        keep = string.format('%.0f', keep * 17 / 16)
        till = string.format('%.0f %s', now + ARGV[4] * 62 - 2000, ARGV[4])
      end
      call('HSET', KEYS[2], 't', token, 'n', place, 'x', till, 'h' .. place,
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
      if first then
        local _, _, came = helpers()
        came()
      end
      if candidacy then
        redis.pcall('ZREM', KEYS[#KEYS], string.match(ARGV[5], ' (%S*)$'))
        call('PUBLISH', ARGV[9], '')
      end
      return head .. token
    end
  end
  value = call('GET', KEYS[1])
  -- What is reserved for the asker is as good as free: once more, in its place.
  ours = value and string.sub(value, 1, 20) == 'incumbent1 reserved '
    and string.match(value, ' (%S*)$') == string.match(ARGV[5], ' (%S*)$')
  if ours then ahead = false end
  how = ours and not paused and not used and 'XX'
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
local what = value and string.match(value, '^incumbent1 (%S+) ')
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
  local tell, begin_turn = helpers()
  local me = claim .. ' ' .. ARGV[6] .. ' ' .. ARGV[4] .. ARGV[2]
  if first and first ~= me and due <= at then
    redis.pcall('ZREM', line, first)
    first = false
  end
  local added = redis.pcall('ZADD', line, 'NX', now, me)
  if type(added) == 'number' then
    call('PEXPIRE', line, string.format('%.0f', math.max(3600000, 8 * ARGV[3])))
    if not first then first = begin_turn(at) end
    if first == me then
      local left = math.min(answer[3] < 0 and 1e12 or answer[3], tonumber(ARGV[3]))
      due = at + left + string.match(me, '^%S+ %S+ %S+ (%d+)')
      overtaken = string.match(call('HGET', KEYS[2], 'q'), '^%d+ (%d+)')
      call('HSET', KEYS[2], 'q', string.format('%.0f ', due) .. overtaken .. ' ' .. me)
      answer[5] = 0
      -- It looks for all of them: whoever hears of it need not, and stays a candidate.
      local others = added == 0 and answer[1] == 'held' and answer[3] > 0
        and redis.pcall('ZRANGE', line, 1, 64) or {}
      for _, other in ipairs(others) do
        local heard = tell(other, 'held', answer[3])
        if candidacy and type(heard) == 'number' and heard > 0 then
          local till = string.format('%.0f', at + candidacy)
          redis.pcall('ZADD', KEYS[#KEYS], 'XX', till, (string.match(other, '^' .. ('%S+ '):rep(7) .. '(%S*)')))
        end
      end
    else
      -- Another one became first just now: it has to look.
      if not due or due <= at then tell(first, 'turn', 0) end
      answer[5] = math.max(1, call('ZRANK', line, me))
    end
    answer[6] = last
  end
end
return answer
