-- Renew what the claim has here with exactly its token, for many leases in one call.
-- KEYS: the node's marker; then of each lease, itself, its floor (see take.lua) and its switches
-- ARGV: 1 what the answer echoes    2 "incumbent2 <members> "    3 ms for which a new node does not
--       vote, or "-" for the longest ttl known    4 the longest ttl in ms; then of each lease:
--       "incumbent1 <claim> <token> ", ttl in ms, "-" or "=" and the new meta
-- Returns the echo, then of each lease: 1 renewed; {pause, resign} renewed, with these switches;
-- 0 not here; "f<floor>" free, on a node that votes: the lease may be planted here again.
local call, members = redis.call, ARGV[2]
local marker, time = call('GET', KEYS[1]), call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
if not marker then
  marker = members .. now .. ' ' .. ARGV[4]
  redis.pcall('SET', KEYS[1], marker)
end
if string.sub(marker, 1, #members) ~= members then return {'members', marker} end
local born, most = string.match(marker, '^(%d+) (%d+)$', #members + 1)
if ARGV[4] - most > 0 then
  most = ARGV[4]
  redis.pcall('SET', KEYS[1], members .. born .. ' ' .. most)
end
local votes = born + (ARGV[3] == '-' and most or ARGV[3]) * 1000 - now <= 0
local answers = {ARGV[1]}
for at = 2, #KEYS, 3 do
  local key, beside, switches = KEYS[at], KEYS[at + 1], KEYS[at + 2]
  local arg = at + 3
  local head, ttl, meta = ARGV[arg], tonumber(ARGV[arg + 1]), ARGV[arg + 2]
  local value, answer = redis.pcall('GET', key), 0
  if type(value) == 'string' and string.sub(value, 1, #head) == head then
    answer = 1
    if meta ~= '-' then
      local new = string.match(value, '^%S+ %S+ %S+ %S+ %S+ %S+ %S* ') .. string.sub(meta, 2)
      if new ~= value and redis.pcall('SET', key, new, 'KEEPTTL').ok then
        call('PUBLISH', beside, '')
      end
    end
    if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl) end
    local kept = redis.pcall('GET', beside)
    if not kept then
      -- The floor expired during a long holding; the next vote needs the last one.
      local token, holder = string.match(value, '^%S+ %S+ (%d+) %S+ %S+ %S+( %S*)')
      local till = string.format(' + %013.0f ', math.floor(now / 1000) + 86400000)
      redis.pcall('SET', beside, string.format('%016.0f', token) .. till .. token .. holder, 'PX', 86400000)
    end
    if not kept or type(kept) == 'string' and string.byte(kept, 18) == 43 then
      local said = redis.pcall('HMGET', switches, 'f:pause', 'f:resign')
      -- What was said before this holder was granted is for an earlier one.
      if said[2] and string.match(said[2], '^%d+') - string.match(head, '(%d+) $') < 0 then said[2] = false end
      if said[1] or said[2] then answer = said end
    end
  elseif not value and votes then
    local kept = redis.pcall('GET', beside)
    if type(kept) == 'string' then answer = 'f' .. string.sub(kept, 1, 16)
    elseif not kept then answer = 'f' end
  end
  answers[#answers + 1] = answer
end
return answers
