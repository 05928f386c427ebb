-- Those who wait for the lease: KEYS[3] is a sorted set of waiters by their time of arrival, each
-- "<claim> <inbox> <f: fair, b: not> <heartbeat, ms> <holder>". Names a waiter: "<inbox>/<id>".
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
  -- Nothing for a text of another version.
  local due, overtaken, watcher, looks, first =
    string.match(text, '^(%d+) (%d+) (%S+) (%d+) (.*)$')
  return due and { due = tonumber(due), overtaken = tonumber(overtaken), watcher = watcher,
    looks = tonumber(looks), first = first }
end

local function write_turn(turn)
  return try('HSET', KEYS[2], FIELD.turn, string.format('%.0f %.0f %s %.0f %s', turn.due,
    turn.overtaken, turn.watcher, turn.looks, turn.first), FIELD.quiet_until, '0')
end
