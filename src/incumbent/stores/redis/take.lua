-- Take: grants the lease, or says why not.
--
-- How the texts are put together (resp.Script does it, when the module is imported): `INCLUDE file`
-- at the beginning of a line stands for the text of that file up to its first `PART`, and
-- `INCLUDE file:part` for the text after `PART part` up to the next one. So an included text sees the
-- locals above it, and the text below sees its own: its head says which of the others' it uses, and
-- which it sets for them. `call` and `try` are redis.call and redis.pcall in all of them. `FIELD.x`
-- becomes the stored name of a field of the record: records.FIELDS says what each of them holds. Lines
-- that are comments are not sent.
--
-- Theory of operation
--
-- There are two ways. The short one, at the top, is for a record that is quiet: it has no waiter, no
-- field and no claim in doubt, and the asker wants no slot and no place as a candidate. The record's
-- `quiet_note` says until when that is so; whoever adds a waiter, a field or such a claim writes '0'
-- there. Nearly all takes go the short way, where each redis.call, and each text that is made, costs a
-- hundredth of the whole exchange. Any other take reads all that may be in its way, and this is
-- decided:
--
--   it is too late for the asker, or its claim was given up in doubt    0: certainly nothing is done
--   the claim holds the lease already                                   the same grant once more
--   paused, a used slot, another's turn, another holder                 refused
--   none of these                                                       granted
--
-- A claim that is refused may stand in line (line.lua). It does not ask again and again: it waits for
-- a message to the inbox of its process, or for the end of the lease. The life of a waiter:
--
--    take: refused                      give: the lease is free, the first in line gets "turn"
--         |                                                |
--         v      all before it are gone                    v
--      in line -------------------------> first -------> its turn, until `lapses_at`
--       |   |                               |              |
--       |   +-- "held": the first asks      | it asks      +-- it takes: granted, the next is first
--       |   |   when the lease ends         | when the     |
--       |   +-- "look": it asks again       | lease can    +-- another take is granted: it is
--       |                                   | end, and     |   overtaken. None is if it is fair,
--       | gives up: give takes              | is refused:  |   or was overtaken four times.
--       | its place away                    v              |
--       v                               its turn is later  +-- it is silent: the next take drops all
--     gone                                                     places of its process, with a message
--
-- The first may be silent because its process is frozen. So after a give two waiters of other
-- processes watch: they get "look", and ask a little after its turn should be over. Messages may be
-- lost; then it takes longer, and no more. Only a take grants.
--
-- KEYS: the lease, its record, and if asked for, in this order: the line, the tombstone of the slot
--       or the sharers, the list of candidates
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
local call, try, value_start, count = redis.call, redis.pcall, ARGV[1], #ARGV
local deadline = ARGV[count]
ARGV[count] = nil
local stored = call('HMGET', KEYS[2], FIELD.token, FIELD.history_index, FIELD.quiet_note)
local time, last_token, last_index, quiet_note = call('TIME'), stored[1], stored[2], stored[3]

-- Numbers stay texts: Lua writes 14 of their 16 digits. Texts of one length compare as numbers.
-- The token is the time, unless tokens are ahead of it, as in the first minute of a server.
local now = time[2]
now = time[1] .. (#now == 6 and now or string.sub('00000' .. now, -6))
-- The request lay in a buffer while this server was frozen or cut off, and nobody waits for the answer.
if now > deadline and #now >= #deadline then return 0 end

local permits, is_quiet = ARGV[10], quiet_note and quiet_note > now
  and string.sub(quiet_note, 18) == ARGV[4] and #last_token == #now
local sharers = permits and KEYS[ARGV[6] == '-' and 3 or 4]
if is_quiet and (not ARGV[7] or permits and ARGV[8] == '-') then
  -- The next index in the history, as text: Lua is slow at writing a number, and this one is written
  -- three times.
  local index, token = tostring((last_index + 1) % 20), now
  if last_token >= now then token = string.format('%.0f', last_token + 1) end
  local granted, since = value_start .. token, ' ' .. now
  local value, part = granted .. ' ' .. index .. since .. ARGV[2]
  if permits then
    part = token .. ' ' .. index .. since
    value = 'incumbent1 shared ' .. part .. ' ' .. ARGV[3] .. string.sub(ARGV[5], 3) .. ' ' .. permits
  end
  -- NX decides: the note says nothing of a holder, and without one the value need not be read.
  if call('SET', KEYS[1], value, 'NX', 'PX', ARGV[3]) then
    if permits then
-- INCLUDE grant:crashed
      call('ZADD', sharers, string.sub(now, 1, -4) + ARGV[3], string.sub(value_start, 12) .. token)
      call('PEXPIRE', sharers, string.match(ARGV[4], '^%d+') * 2)
      call('HSET', KEYS[2], FIELD.token, token, FIELD.history_index, index, FIELD.holding .. index,
        token .. since .. ARGV[5], FIELD.sharer .. string.sub(value_start, 12, -2), part .. ARGV[2])
    else
      call('HSET', KEYS[2], FIELD.token, token, FIELD.history_index, index, FIELD.holding .. index,
        token .. since .. ARGV[5])
    end
    return granted
  end
end

local function asked_for(argument) return argument and argument ~= '-' and argument end
local function is_of_claim(text) return string.sub(text, 1, #value_start) == value_start end

local claim, now_ms, ttl = string.sub(value_start, 12, -2), tonumber(string.sub(now, 1, -4)), ARGV[3]
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

local must_yield, after_grant, stand_in_line
if turn or waits then
  -- Only here: making a function costs as much as a redis.call.
-- INCLUDE line
  local me = waits and claim .. ' ' .. waits
  if turn then
    turn = read_turn(turn)
    -- The first waiter goes before this claim if it is fair, or was overtaken often enough.
    must_yield = not starts_with(turn.first, claim .. ' ') and turn.lapses_at > now_ms
      and (turn.overtaken >= 4 or string.match(turn.first, '^%S+ %S+ f'))
  end

-- INCLUDE line:take
end

local paused, resign, used = false, false, false
if has_fields then
  paused, resign = unpack(call('HMGET', KEYS[2], FIELD.put .. 'pause', FIELD.put .. 'resign'))
end
if slot then
  used = call('GET', slot)
  if used and is_of_claim(used) then used = false end
end

-- INCLUDE grant

local value, full, others, is_first = false, false, false, true
if permits then
  value = call('GET', KEYS[1])
  if value and string.sub(value, 1, 18) == 'incumbent1 shared ' then
    forget_ended_parts()
    local mine = call('HGET', KEYS[2], FIELD.sharer .. claim)
    local again = mine and share_again(mine)
    if again then return again end
    is_first = false
    others = string.match(value, '%d+$') ~= permits
    full = not others and permits ~= '0' and call('ZCARD', sharers) >= tonumber(permits)
    if not others and not full then value = false end
  end
end
-- As on the short way, without a look at the lease: NX finds out whether somebody holds it.
if not paused and not used and not must_yield and not value then
  local granted = grant('NX', is_first)
  if granted then return granted end
end
if not permits then value = call('GET', KEYS[1]) end
if value and is_of_claim(value) then
  if string.match(value, '^%d+', #value_start + 1) - least_token < 0 then
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
  value, must_yield = false, false
end

-- Refused. A server out of memory cannot write the lists, and refuses all the same.
if candidacy then
  try('ZREMRANGEBYSCORE', candidates, '-inf', now_ms)
  local until_ms = string.format('%.0f', now_ms + candidacy)
  if type(try('ZADD', candidates, until_ms, holder)) == 'number' then
    -- Those whose candidacy ends first go.
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
  reason, value, left = 'turn', turn.first, turn.lapses_at - now_ms
end
-- Waiting does not help against another number of permits. A record without a token and a field has
-- expired during a long holding: without its last token there is no line until a renewal restores it.
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
