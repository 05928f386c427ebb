-- Found a new cluster on a node that is blank: it votes at once, for nobody has voted here before.
-- KEYS: the node's marker    ARGV: 1 the marker    2 the last instant (unix us) at which to do it
local time = redis.call('TIME')
if ARGV[2] - (time[1] .. string.sub('00000' .. time[2], -6)) < 0 then return 0 end
return redis.call('SET', KEYS[1], ARGV[1], 'NX') and 1 or 0
