-- Renew what the claim has here with exactly its token, for many leases in one call.
-- KEYS: the node's marker; then of each lease, itself, its floor and the hash of its fields
-- ARGV: 1 what the answer echoes    2 "incumbent2 <members> "    3 ms for which a new node does not
--       vote, or "-" for the longest ttl known    4 the longest ttl in ms; then of each lease:
--       "incumbent1 <claim> <token> ", ttl in ms, "-" or "=" and the new meta
-- Returns the echo, then of each lease: 1 renewed; {pause, resign} renewed, with these fields;
-- 0 not here; "f<floor>" free, on a node that votes: the lease may be planted here again.
-- INCLUDE node
-- INCLUDE floor
local marker_key, echo, members, quarantine, longest = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local marker, now = call('GET', marker_key), unix_us()
if not marker then
  marker = members .. whole(now) .. ' ' .. longest
  try('SET', marker_key, marker)
end
if not starts_with(marker, members) then return { 'members', marker } end
local born, most = string.match(marker, '^(%d+) (%d+)$', #members + 1)
if longest - most > 0 then
  most = longest
  try('SET', marker_key, members .. born .. ' ' .. most)
end
local votes = born + (quarantine == '-' and most or quarantine) * 1000 - now <= 0

local function change_meta(lease, channel, value, meta)
  local new = string.match(value, '^%S+ %S+ %S+ %S+ %S+ %S+ %S* ') .. meta
  if new ~= value and try('SET', lease, new, 'KEEPTTL').ok then call('PUBLISH', channel, '') end
end

local function notices(fields, head)
  local pause, resign = unpack(try('HMGET', fields, FIELD.pause, FIELD.resign))
  -- A request from before this holder was granted was meant for an earlier one.
  if resign and string.match(resign, '^%d+') - string.match(head, '(%d+) $') < 0 then resign = false end
  return (pause or resign) and { pause, resign } or 1
end

local function renew(lease, floor_key, fields, head, ttl, meta)
  local value = try('GET', lease)
  if type(value) == 'string' and starts_with(value, head) then
    if meta ~= '-' then change_meta(lease, floor_key, value, string.sub(meta, 2)) end
    if call('PTTL', lease) < ttl then call('PEXPIRE', lease, ttl) end
    local kept = try('GET', floor_key)
    if not kept then
      -- The floor expired during a long holding; the next vote needs the last one.
      local token, holder = token_and_holder(value)
      local till = math.floor(now / 1000) + DAY_MS
      try('SET', floor_key, floor_value(token, ' + ', till, token .. holder), 'PX', DAY_MS)
    end
    local may_be_told = not kept or type(kept) == 'string' and flag_of(kept) == ' + '
    return may_be_told and notices(fields, head) or 1
  end
  if value or not votes then return 0 end
  local kept = try('GET', floor_key)
  if kept and type(kept) ~= 'string' then return 0 end
  return 'f' .. (floor_of(kept) or '')
end

local answers = { echo }
for at = 2, #KEYS, 3 do
  local head, ttl, meta = ARGV[at + 3], tonumber(ARGV[at + 4]), ARGV[at + 5]
  answers[#answers + 1] = renew(KEYS[at], KEYS[at + 1], KEYS[at + 2], head, ttl, meta)
end
return answers
