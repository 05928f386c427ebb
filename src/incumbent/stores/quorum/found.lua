-- Found a new cluster on a node that is blank: it votes at once, for nobody has voted here before.
-- KEYS: the node's marker    ARGV: 1 the marker    2 the last instant (unix us) at which to do it
-- Returns 1 if it was founded, else 0.
-- INCLUDE node
local founded, last_us = unpack(ARGV)
if last_us - unix_us() < 0 then return 0 end
return call('SET', KEYS[1], founded, 'NX') and 1 or 0
