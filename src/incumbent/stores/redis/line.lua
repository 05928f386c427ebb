-- The line: who waits for a lease, and whose turn it is. Its theory of operation is in take.lua.
-- KEYS[3] is a sorted set of waiters by their time of arrival, each "<claim> <inbox> <f: fair, b: not>
-- <heartbeat, ms> <holder>". A waiter is named "<inbox>/<id>". The turn is a field of the record: see
-- records.FIELDS.
-- SILENT: `lapses_at` of a first waiter that did not use its turn, after another was granted the lease.
-- Sets: SILENT, id_of, inbox_of, heartbeat_of, name_of, starts_with, waiters, notify, read_turn,
--   write_turn
local SILENT = 0
local function id_of(waiter) return string.sub(waiter, 1, 16) end
local function inbox_of(waiter) return string.match(waiter, '^%S+ (%S+)') end
local function heartbeat_of(waiter) return tonumber(string.match(waiter, '^%S+ %S+ %S+ (%d+)')) end
local function name_of(waiter) return inbox_of(waiter) .. '/' .. id_of(waiter) end
local function starts_with(text, start) return string.sub(text, 1, #start) == start end
local function waiters(from, to) return try('ZRANGE', KEYS[3], from, to) end

local function notify(waiter, word, ms)
  -- Returns true if its process is connected.
  local message = string.format('%s %s %.0f', word, id_of(waiter), ms)
  local receivers = try('PUBLISH', 'incumbent:to:' .. inbox_of(waiter), message)
  return type(receivers) == 'number' and receivers > 0
end

local function read_turn(text)
  local lapses_at, overtaken, watcher, recheck_at, first =
    string.match(text, '^(%d+) (%d+) (%S+) (%d+) (.*)$')
  return { lapses_at = tonumber(lapses_at), overtaken = tonumber(overtaken), watcher = watcher,
    recheck_at = tonumber(recheck_at), first = first }
end

local function write_turn(turn)
  return try('HSET', KEYS[2], FIELD.turn, string.format('%.0f %.0f %s %.0f %s', turn.lapses_at,
    turn.overtaken, turn.watcher, turn.recheck_at, turn.first), FIELD.quiet_note, '0')
end

-- PART take
-- What a take changes in the line.
-- Uses: turn, now_ms, me, name_of, waiters, heartbeat_of, write_turn, inbox_of, starts_with,
--   notify, candidacy, candidates, after_grant, claim, ttl, SILENT, stand_in_line, now
-- Sets: after_grant, stand_in_line, turn
local function unwatch()
  -- The watcher has asked by now, or is the asker.
  if turn.recheck_at <= now_ms or me and turn.watcher == name_of(me) then
    turn.watcher, turn.recheck_at = '-', 0
  end
end

local function begin_turn(from)
  -- The first waiter's turn ends a heartbeat after `from` (unix ms).
  turn.first = waiters(0, 0)[1]
  if not turn.first then
    call('HDEL', KEYS[2], FIELD.turn)
    return
  end
  turn.lapses_at, turn.overtaken = from + heartbeat_of(turn.first), 0
  write_turn(turn)
end

local function drop_silent()
  -- The first waiter did not use its turn. Its process loses all its places, and its waiters join
  -- again when it runs. If it is the asker's own process, which runs, only this waiter loses its place.
  local inbox = inbox_of(turn.first)
  if inbox == inbox_of(me) then
    try('ZREM', KEYS[3], turn.first)
    return
  end
  if starts_with(turn.watcher, inbox .. '/') then turn.watcher, turn.recheck_at = '-', 0 end
  for _, waiter in ipairs(waiters(0, -1)) do
    if inbox_of(waiter) == inbox then
      try('ZREM', KEYS[3], waiter)
      notify(waiter, 'turn', 0)
    end
  end
end

local function let_others_rest(left)
  -- The first waiter asks for all of them when the lease ends. A waiter that gets this message need
  -- not ask, and stays a candidate.
  for _, waiter in ipairs(waiters(1, 64)) do
    if notify(waiter, 'held', left) and candidacy then
      local standing, longer = string.match(waiter, ' (%S*)$'), now_ms + candidacy
      local ends = try('ZSCORE', candidates, standing)
      if type(ends) == 'string' and tonumber(ends) < longer then
        try('ZADD', candidates, string.format('%.0f', longer), standing)
      end
    end
  end
end

after_grant = function(recheck_in)
  -- The lease was granted while somebody waits, and can be granted again in `recheck_in` ms.
  local was_first = starts_with(turn.first, claim .. ' ')
  if me then try('ZREM', KEYS[3], me) end
  unwatch()
  if me and (was_first or turn.lapses_at <= now_ms) then
    if not was_first then drop_silent() end
    begin_turn(recheck_in == 0 and now_ms or now_ms + ttl)
    -- A watcher asks before the lease can end, and sees to it that the first asks too. Without a
    -- watcher, tell the first when to ask.
    if turn.first and recheck_in == 0 then
      notify(turn.first, 'turn', 0)
    elseif turn.first and turn.watcher == '-' then
      notify(turn.first, 'look', recheck_in)
    end
  else
    turn.overtaken = turn.overtaken + 1
    -- A take without a queue does not have the key of the line, so it cannot drop the silent first
    -- waiter. The next script that has the key does.
    if turn.lapses_at <= now_ms then turn.lapses_at = SILENT end
    write_turn(turn)
  end
end

stand_in_line = function(reason, value, left)
  -- Returns the place, or nothing if it cannot be had.
  turn = turn or { watcher = '-', recheck_at = 0 }
  unwatch()
  if turn.first and turn.lapses_at <= now_ms and (turn.first ~= me or turn.lapses_at == SILENT) then
    drop_silent()
    turn.first = nil
  end
  local added = try('ZADD', KEYS[3], 'NX', now, me)
  if type(added) ~= 'number' then return end
  -- So the line of a name that nobody uses any more goes by itself.
  call('PEXPIRE', KEYS[3], string.format('%.0f', math.max(3600000, 8 * ttl)))
  local is_new_turn = not turn.first
  if is_new_turn then begin_turn(now_ms) end
  if turn.first == me then
    local recheck_in = math.min(left < 0 and 1e12 or left, tonumber(ttl))
    turn.lapses_at = now_ms + recheck_in + heartbeat_of(me)
    write_turn(turn)
    -- Not if the holding is younger than a second: then the others will not ask for a while anyway.
    -- Nor for a foreign client's key: there the first polls, and the others do not.
    local since = value and string.match(value, '^%S+ %S+ %S+ %S+ (%d+)') or now
    if added == 0 and reason == 'held' and left > 0 and now - since > 1000000 then
      let_others_rest(left)
    end
    return 0
  end
  if is_new_turn then
    -- Another waiter has just become the first, and has to ask.
    notify(turn.first, 'turn', 0)
  elseif reason == 'turn' then
    -- A claim that is refused because of a turn asks again when that turn is over.
    if turn.recheck_at == 0 and inbox_of(turn.first) ~= inbox_of(me) then
      turn.watcher, turn.recheck_at = name_of(me), turn.lapses_at
      write_turn(turn)
    end
  elseif added == 0 and turn.recheck_at == 0 then
    -- It watched, or asked by itself. The first has to ask when the lease ends.
    write_turn(turn)
    if left > 0 then notify(turn.first, 'look', left) end
  end
  return math.max(1, call('ZRANK', KEYS[3], me))
end

-- PART give
-- What a give changes in the line.
-- Uses: turn, name_of, inbox_of, notify, now_ms, waiters, SILENT, heartbeat_of, starts_with,
--   write_turn, value, id_of
-- Sets: offer_turn, leave
local function appoint(turn_ms)
  -- Two waiters ask if the first stays silent, because one of them may be frozen too: the nearest one
  -- of another process, and a little later the last one, which has asked most recently.
  turn.watcher, turn.recheck_at = '-', 0
  local function ask(list, ms)
    for _, waiter in ipairs(list) do
      local name = name_of(waiter)
      if inbox_of(waiter) ~= inbox_of(turn.first) and name ~= turn.watcher
          and notify(waiter, 'look', ms) then
        turn.watcher, turn.recheck_at = name, now_ms + turn_ms
        return
      end
    end
  end
  ask(waiters(1, 15), turn_ms)
  ask(waiters(-1, -1), math.ceil(turn_ms * 1.125))
end

local function offer_turn(left)
  -- The turn of the first whose process is connected begins in `left` ms: at once if the lease is
  -- free.
  if turn.lapses_at == SILENT then call('ZREM', KEYS[3], turn.first) end
  while true do
    local first, since = unpack(try('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES'))
    if not first then
      call('HDEL', KEYS[2], FIELD.turn)
      return
    end
    local heartbeat = heartbeat_of(first)
    -- A waiter that has just come may not listen yet: it asks once it does.
    if notify(first, left > 0 and 'look' or 'turn', left) or since / 1000 + heartbeat >= now_ms then
      if first ~= turn.first then turn.first, turn.overtaken = first, 0 end
      turn.lapses_at = now_ms + left + heartbeat
      if left == 0 and (turn.recheck_at <= now_ms or starts_with(turn.watcher, inbox_of(first) .. '/'))
      then
        appoint(heartbeat)
      end
      write_turn(turn)
      return
    end
    -- Its process is gone.
    call('ZREM', KEYS[3], first)
  end
end

local function leave(claim)
  -- `claim` waits no longer.
  for _, waiter in ipairs(waiters(0, -1)) do
    if starts_with(waiter, claim .. ' ') then
      call('ZREM', KEYS[3], waiter)
      break
    end
  end
  -- The first may ask at once if there are sharers, beside whom there may be room, or if the name is
  -- closed: its refusal says when that ends.
  local state = value and string.match(value, '^incumbent1 (%l+) ')
  local left = state and 0 or math.max(0, call('PTTL', KEYS[1]))
  local watched = string.match(turn.watcher, '/(.*)$') == id_of(claim)
  if watched then turn.watcher, turn.recheck_at = '-', 0 end
  if starts_with(turn.first, claim .. ' ') then
    offer_turn(left)
  elseif watched then
    -- The waiter that leaves was to ask for the others.
    if left == 0 and turn.lapses_at > now_ms then appoint(turn.lapses_at - now_ms) end
    write_turn(turn)
  end
end
