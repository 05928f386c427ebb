-- Take back a vote that brought no majority, or that may still be on its way.
-- KEYS: the lease, its floor (see take.lua), which names the channel too
-- ARGV: 1 "incumbent1 <claim> "    2 ballot
-- A vote of that claim with a larger ballot is left alone: it is of a later try. The ballot becomes
-- the floor, so that a vote asked for earlier which arrives only now is refused: for ten minutes at
-- least, after which it is a minute behind the clock, where nothing is voted for without a floor.
-- No ballot that anybody proposes is two minutes ahead of a clock that is wrong by less than one.
local call, head, ballot = redis.call, ARGV[1], ARGV[2]
local value, kept, time = call('GET', KEYS[1]), call('GET', KEYS[2]), call('TIME')
local last, freed = kept and string.sub(kept, 34) or '', 0
if value and string.sub(value, 1, #head) == head then
  local stored = string.match(value, '^%d+', #head + 1)
  if stored - ballot <= 0 then
    call('DEL', KEYS[1])
    call('PUBLISH', KEYS[2], '')
    -- It was no holding.
    if string.match(last, '(%d+) [^\n]*$') == stored then last = string.match(last, '^(.*)\n') or '' end
    freed = 1
  end
end
local now = time[1] .. string.sub('00000' .. time[2], -6)
local floor, ahead, at = kept and string.sub(kept, 1, 16), ballot - now, math.floor(now / 1000)
local till, flag = kept and string.sub(kept, 20, 32), kept and string.sub(kept, 17, 19) or ' + '
local raises = ahead <= 120000000 and (not floor or ballot - floor > 0)
if raises then floor = string.format('%016.0f', ballot) end
if raises and (not till or till - at < 600000) then
  till = string.format('%013.0f ', at + 600000)
  redis.pcall('SET', KEYS[2], floor .. flag .. till .. last, 'PX', 600000)
elseif floor and (raises or freed == 1) then
  redis.pcall('SET', KEYS[2], floor .. flag .. till .. ' ' .. last, 'KEEPTTL')
end
return freed
