-- Renew, for many leases of one server (or of one slot of a cluster) in one call.
-- KEYS: of each lease, itself and its companion
-- ARGV: 1 what the answer echoes; then of each lease:
--       "incumbent1 <claim> <token> ", ttl in ms, "-" or "=" and the new meta
-- Returns the echo, then of each lease: 0 gone, 1 renewed, or {pause, resign} for the notices.
local call = redis.call
local answers = {ARGV[1]}
for at = 1, #KEYS, 2 do
  local key, companion = KEYS[at], KEYS[at + 1]
  local arg = (at - 1) / 2 * 3 + 2
  local head, ttl, meta = ARGV[arg], tonumber(ARGV[arg + 1]), ARGV[arg + 2]
  local value, answer = redis.pcall('GET', key), 0
  -- A key that somebody made a list or a hash is gone for its holder; the rest must not fail.
  if type(value) == 'string' and string.sub(value, 1, #head) == head then
    answer = 1
    if meta ~= '-' then
      local new = string.match(value, '^%S+ %S+ %S+ %S+ %S+ %S+ %S* ') .. string.sub(meta, 2)
      if new ~= value and redis.pcall('SET', key, new, 'KEEPTTL').ok then
        -- The channel is named as the companion is, but for the last letter.
        call('PUBLISH', string.sub(companion, 1, -2) .. 'c', '')
      end
    end
    if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl) end
    local beside = redis.pcall('HMGET', companion, 't', 'k')
    if beside[2] then
      local said = call('HMGET', companion, 'f:pause', 'f:resign')
      if said[1] or said[2] then answer = said end
    elseif not beside[1] and not beside.err then
      -- The companion expired during a long holding; the next token needs the last one.
      local token, place = string.match(value, '^%S+ %S+ (%d+) (%d+)')
      if type(redis.pcall('HSET', companion, 't', token, 'n', place)) == 'number' then
        call('PEXPIRE', companion, 86400000)
      end
    end
  end
  answers[#answers + 1] = answer
end
return answers
