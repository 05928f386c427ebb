-- Take back a vote that brought no majority, or that may still be on its way.
-- KEYS: the lease, its floor
-- ARGV: 1 "incumbent1 <claim> "    2 ballot
-- A vote of that claim with a larger ballot is left alone: it is of a later try. The ballot becomes
-- the floor, so that a vote asked for earlier which arrives only now is refused: for ten minutes at
-- least, after which it is a minute behind the clock, where nothing is voted for without a floor.
-- No ballot that anybody proposes is two minutes ahead of a clock that is wrong by less than one.
-- Returns 1 if a vote was taken back, else 0.
-- INCLUDE node
-- INCLUDE floor
local lease, floor_key = unpack(KEYS)
local head, ballot = unpack(ARGV)
local KEEP_MS = 600000
local value, kept = call('GET', lease), call('GET', floor_key)
local last, freed = last_of(kept), 0
if value and starts_with(value, head) then
  local stored = string.match(value, '^%d+', #head + 1)
  if stored - ballot <= 0 then
    call('DEL', lease)
    call('PUBLISH', floor_key, '')
    -- It was no holding.
    if last_token(last) == stored then last = string.match(last, '^(.*)\n') or '' end
    freed = 1
  end
end

local now = unix_us()
local floor, till, now_ms = floor_of(kept), until_of(kept), math.floor(now / 1000)
local raises = ballot - now <= 2 * MINUTE and (not floor or ballot - floor > 0)
if raises then floor = ballot end
if raises and (not till or till - now_ms < KEEP_MS) then
  till = now_ms + KEEP_MS
  try('SET', floor_key, floor_value(floor, flag_of(kept), till, last), 'PX', KEEP_MS)
elseif floor and (raises or freed == 1) then
  try('SET', floor_key, floor_value(floor, flag_of(kept), till, last), 'KEEPTTL')
end
return freed
