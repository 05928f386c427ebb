-- Renew, for many leases of one server (or of one slot of a cluster) in one call.
-- KEYS: of each lease, itself and its companion
-- ARGV: 1 what the answer echoes, 2 ttl in ms; then of each lease "incumbent2 <claim> <token> ";
--       then of those that want more: their place (from 1), their ttl, "-" or "=" and the new meta
-- Returns the echo, then of each lease: 0 gone, 1 renewed, or {pause, resign} for the notices.
local call, try, sub = redis.call, redis.pcall, string.sub
local leases, common, more = #KEYS / 2, tonumber(ARGV[2]), {}
for at = 3 + leases, #ARGV, 3 do more[tonumber(ARGV[at])] = at end
local answers = {ARGV[1]}
for place = 1, leases do
  local key, companion, head = KEYS[2 * place - 1], KEYS[2 * place], ARGV[2 + place]
  local ttl, meta, at = common, '-', more[place]
  if at then ttl, meta = tonumber(ARGV[at + 1]), ARGV[at + 2] end
  local value, answer = try('GET', key), 0
  -- A key that somebody made a list or a hash is gone for its holder; the rest must not fail.
  if type(value) == 'string' and sub(value, 1, #head) == head then
    answer = 1
    if meta ~= '-' then
      local new = string.match(value, '^%S+ %S+ %S+ %S+ %S+ %S+ %S* ') .. sub(meta, 2)
      if new ~= value and try('SET', key, new, 'KEEPTTL').ok then
        -- The channel is named as the companion is, but for the last letter.
        call('PUBLISH', sub(companion, 1, -2) .. 'c', '')
      end
    end
    if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl) end
    local beside = try('HMGET', companion, 't', 'k')
    if beside[2] then
      local said = call('HMGET', companion, 'f:pause', 'f:resign')
      if said[1] or said[2] then answer = said end
    elseif not beside[1] and not beside.err then
      -- The companion expired during a long holding; the next token needs the last one.
      local token, number = string.match(value, '^%S+ %S+ (%d+) (%d+)')
      if type(try('HSET', companion, 't', token, 'n', number)) == 'number' then
        call('PEXPIRE', companion, 86400000)
      end
    end
  end
  answers[#answers + 1] = answer
end
return answers
