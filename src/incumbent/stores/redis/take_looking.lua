-- A take, and a look at the server in the same step.
-- KEYS: as take's, and the marker    ARGV: as take's
-- Returns what take returns, the marker, INFO replication, TIME.
local marker = table.remove(KEYS)
local function take()
-- INCLUDE take
end
local outcome, try = take(), redis.pcall
return {outcome, try('GET', marker), try('INFO', 'replication'), try('TIME')}
