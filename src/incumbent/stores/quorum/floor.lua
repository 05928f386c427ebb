-- The floor of a name is the largest ballot that was voted for here. Its key, which names the channel
-- of the changes too, has the value "<floor, 16 digits> <s> <until, unix ms, 13 digits> <last>".
-- s: "-" if no word waits for who holds or takes the lease (pause, resign), "+" if one may.
-- until: when the key expires. last: the last few holdings, a line each, before they move to the
-- past together: "<token> <holder>", with " <ended, unix us>" if it was given back.
local function floor_of(kept) return kept and string.sub(kept, 1, 16) end
local function flag_of(kept) return kept and string.sub(kept, 17, 19) or ' + ' end
local function until_of(kept) return kept and string.sub(kept, 20, 32) end
local function last_of(kept) return kept and string.sub(kept, 34) or '' end
local function last_token(last) return string.match(last, '(%d+) [^\n]*$') end
local function token_and_holder(value)
  return string.match(value, '^%S+ %S+ (%d+) %S+ %S+ %S+( %S*)')
end
local function floor_value(floor, flag, till, last)
  return string.format('%016.0f%s%013.0f ', floor, flag, till) .. last
end
