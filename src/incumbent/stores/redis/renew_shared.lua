-- Renew, for many who share a lease, in one call.
-- KEYS: of each, the lease, its record, and those who share it
-- ARGV and what it returns: as renew's, but "<claim> <token>" of each
local call, try, count = redis.call, redis.pcall, #KEYS / 3
local time = call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local now_ms = tonumber(string.sub(now, 1, -4))

local function change_meta(key, record, claim, meta)
  local field = FIELD.sharer .. claim
  local old = try('HGET', record, field)
  if type(old) ~= 'string' then return end
  local new = string.match(old, '^%S+ %S+ %S+ %S+ %S* ') .. meta
  if new ~= old and type(try('HSET', record, field, new)) == 'number' then
    -- Another value, for those who watch see by it that something changed.
    local value = string.gsub(call('GET', key), '^(%S+ %S+ %S+ %S+) %d+', '%1 ' .. now)
    call('SET', key, value, 'KEEPTTL')
    call('PUBLISH', string.sub(record, 1, -2) .. 'c', '')
  end
end

local function renew(key, record, sharers, member, ttl, meta)
  local value, ends = try('GET', key), try('ZSCORE', sharers, member)
  if type(value) ~= 'string' or string.sub(value, 1, 18) ~= 'incumbent2 shared '
      or type(ends) ~= 'string' or tonumber(ends) <= now_ms then
    return 0
  end
  if meta ~= '-' then change_meta(key, record, string.match(member, '^%S+'), string.sub(meta, 2)) end
  if tonumber(ends) < now_ms + ttl then
    call('ZADD', sharers, string.format('%.0f', now_ms + ttl), member)
    for _, name in ipairs({ key, sharers }) do
      if call('PTTL', name) < ttl then call('PEXPIRE', name, ttl) end
    end
  end
  -- The record says who they are, for as long as they last.
  local left = call('PTTL', record)
  if left >= 0 and left < 43200000 then call('PEXPIRE', record, 86400000) end
  if try('HGET', record, FIELD.field_count) then
    local notices = call('HMGET', record, FIELD.put .. 'pause', FIELD.put .. 'resign')
    if notices[1] or notices[2] then return notices end
  end
  return 1
end

local special, answers = {}, { ARGV[1] }
for at = 3 + count, #ARGV, 3 do
  special[tonumber(ARGV[at])] = { ttl = tonumber(ARGV[at + 1]), meta = ARGV[at + 2] }
end
local usual = { ttl = tonumber(ARGV[2]), meta = '-' }
for place = 1, count do
  local wants, at = special[place] or usual, 3 * place
  answers[place + 1] =
    renew(KEYS[at - 2], KEYS[at - 1], KEYS[at], ARGV[2 + place], wants.ttl, wants.meta)
end
return answers
