-- transition::count. KEYS: slot. ARGV: the value as read, where it has a response up to that (or its identity alone); this
-- sighting's time and payload hash; and, where it has a response, the length of the whole value and what follows the response.
-- Replies 1 where counted and nobody changed the value since it was read (the caller knows what stands there now), the new
-- value in a list where counted after another change, else what stands there (nil: nothing).
local v = redis.call('GET', KEYS[1])
if not v then return false end
local read, sighting = ARGV[1], ARGV[2]
-- counted.lua
-- What nearly every call finds: the value that was read, and its first payload again.
if v == read and string.sub(v, 43, 74) == string.sub(sighting, 7) then
  redis.call('SETRANGE', KEYS[1], 20, counted(v, sighting))
  return 1
end
-- readable.lua
local unchanged = #v >= 75 and (v == read
  or (ARGV[3] and #v == tonumber(ARGV[3]) and sub(v, 1, #read) == read and sub(v, #v + 1 - #ARGV[4]) == ARGV[4]))
if not unchanged and (sub(v, 1, 20) ~= sub(read, 1, 20) or not readable(v)) then return v end
-- drifted.lua
local head, flags = counted(v, sighting), byte(v, 75)
local new
if sub(v, 43, 74) == sub(sighting, 7) then
  redis.call('SETRANGE', KEYS[1], 20, head)
  if unchanged then return 1 end
  new = sub(v, 1, 20) .. head .. sub(v, 31)
elseif flags % 2 == 1 then
  local changed = head .. sub(v, 31, 75) .. drifted(v, sighting)
  redis.call('SETRANGE', KEYS[1], 20, changed)
  if unchanged then return 1 end
  new = sub(v, 1, 20) .. changed .. sub(v, 118)
else
  new = sub(v, 1, 20) .. head .. sub(v, 31, 74) .. string.char(flags + 1) .. drifted(v, sighting) .. sub(v, 76)
  redis.call('SET', KEYS[1], new, 'KEEPTTL')
  if unchanged then return 1 end
end
return { new }
