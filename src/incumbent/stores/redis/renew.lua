-- Renew, for many leases of one server (or of one slot of a cluster) in one call.
-- KEYS: of each lease, itself and its record
-- ARGV: 1 what the answer echoes, 2 ttl in ms; then of each lease "incumbent1 <claim> <token> ";
--       then of those that want more: their index (from 1), their ttl, "-" or "=" and the new meta
-- Returns the echo, then of each lease: 0 gone, 1 renewed, or {pause, resign} for the notices.
local call, try, count = redis.call, redis.pcall, #KEYS / 2
-- INCLUDE renew:notices

local function change_meta(key, record, value, meta)
  local new = string.match(value, '^%S+ %S+ %S+ %S+ %S+ %S+ %S* ') .. meta
  if new ~= value and try('SET', key, new, 'KEEPTTL').ok then
    -- The channel is named as the record is, but for the last letter.
    call('PUBLISH', string.sub(record, 1, -2) .. 'c', '')
  end
end

local function restore(record, value)
  -- The record expired during a long holding; the next token needs the last one.
  local token, index = string.match(value, '^%S+ %S+ (%d+) (%d+)')
  if type(try('HSET', record, FIELD.token, token, FIELD.history_index, index)) == 'number' then
    call('PEXPIRE', record, 86400000)
  end
end

local function renew(index, value_start, ttl, meta)
  local key, record = KEYS[2 * index - 1], KEYS[2 * index]
  local value = try('GET', key)
  -- A key that is a list or a hash now is lost for its holder; the other leases must not fail for it.
  if type(value) ~= 'string' or string.sub(value, 1, #value_start) ~= value_start then return 0 end
  if meta ~= '-' then change_meta(key, record, value, string.sub(meta, 2)) end
  -- Never shorter: an earlier answer may have been believed already, with a longer ttl.
  if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl) end
  local beside = try('HMGET', record, FIELD.token, FIELD.field_count)
  if beside[2] then return notices_or_one(record) end
  if not beside[1] and not beside.err then restore(record, value) end
  return 1
end

-- INCLUDE renew:each

-- PART shared
-- Renew many parts of shared leases in one call.
-- KEYS: of each, the lease, its record, and its sharers
-- ARGV and what it returns: as renew's, but "<claim> <token>" of each
local call, try, count = redis.call, redis.pcall, #KEYS / 3
-- INCLUDE renew:notices
local time = call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local now_ms = tonumber(string.sub(now, 1, -4))

local function change_meta(key, record, claim, meta)
  local field = FIELD.sharer .. claim
  local old = try('HGET', record, field)
  if type(old) ~= 'string' then return end
  local new = string.match(old, '^%S+ %S+ %S+ %S+ %S* ') .. meta
  if new ~= old and type(try('HSET', record, field, new)) == 'number' then
    -- Another value shows waiters that something changed.
    local value = string.gsub(call('GET', key), '^(%S+ %S+ %S+ %S+) %d+', '%1 ' .. now)
    call('SET', key, value, 'KEEPTTL')
    call('PUBLISH', string.sub(record, 1, -2) .. 'c', '')
  end
end

local function renew(index, member, ttl, meta)
  local key, record, sharers = unpack(KEYS, 3 * index - 2, 3 * index)
  local value, ends = try('GET', key), try('ZSCORE', sharers, member)
  if type(value) ~= 'string' or string.sub(value, 1, 18) ~= 'incumbent1 shared '
      or type(ends) ~= 'string' or tonumber(ends) <= now_ms then
    return 0
  end
  if meta ~= '-' then change_meta(key, record, string.match(member, '^%S+'), string.sub(meta, 2)) end
  if tonumber(ends) < now_ms + ttl then
    call('ZADD', sharers, string.format('%.0f', now_ms + ttl), member)
    if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl) end
  end
  -- The record describes the sharers, for as long as they last; those who crash are found by their list.
  for _, name in ipairs({ record, sharers }) do
    local left = call('PTTL', name)
    if left >= 0 and left < 43200000 + ttl then call('PEXPIRE', name, 86400000 + ttl) end
  end
  return try('HGET', record, FIELD.field_count) and notices_or_one(record) or 1
end

-- INCLUDE renew:each

-- PART notices
-- Sets: notices_or_one
local function notices_or_one(record)
  local notices = call('HMGET', record, FIELD.put .. 'pause', FIELD.put .. 'resign')
  return (notices[1] or notices[2]) and notices or 1
end

-- PART each
-- Renew all: renew(index, held by, ttl, meta) renews one lease, and returns its answer.
-- Uses: count, renew
local special, answers = {}, { ARGV[1] }
for at = 3 + count, #ARGV, 3 do
  special[tonumber(ARGV[at])] = { ttl = tonumber(ARGV[at + 1]), meta = ARGV[at + 2] }
end
local usual = { ttl = tonumber(ARGV[2]), meta = '-' }
for index = 1, count do
  local wants = special[index] or usual
  answers[index + 1] = renew(index, ARGV[2 + index], wants.ttl, wants.meta)
end
return answers
