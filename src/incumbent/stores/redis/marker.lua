-- The marker: of which incarnation of the server these data are. Written only over what was seen.
-- KEYS: the marker    ARGV: 1 what was seen, "" for nothing    2 what to write
-- Returns what is there now.
local there = redis.call('GET', KEYS[1]) or ''
if there == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  there = ARGV[2]
end
return there
