-- transition::count. KEYS: slot. ARGV: the value as read, without its response section (or its identity alone); this
-- sighting's time and payload hash; and, where a section was left out, the length of the whole value.
-- Replies 1 where counted and nobody changed the value since it was read (the caller knows what stands there now), the new
-- value in a list where counted after another change, else what stands there (nil: nothing).
local v = redis.call('GET', KEYS[1])
if not v then return false end
local read, sighting = ARGV[1], ARGV[2]
local function counted()
  local count, last_seen = struct.unpack('>I4I6', v, 21)
  if count < 4294967295 then count = count + 1 end
  local later = struct.unpack('>I6', sighting) > last_seen
  return struct.pack('>I4', count) .. (later and string.sub(sighting, 1, 6) or string.sub(v, 25, 30))
end
-- What nearly every call finds: the value that was read, and its first payload again.
if v == read and string.sub(v, 43, 74) == string.sub(sighting, 7) then
  redis.call('SETRANGE', KEYS[1], 20, counted())
  return 1
end
-- readable.lua
local unchanged = #v >= 75
  and (v == read or (ARGV[3] and #v == tonumber(ARGV[3]) and sub(v, 1, #read) == read))
if not unchanged and (sub(v, 1, 20) ~= sub(read, 1, 20) or not readable(v)) then return v end

-- The later of two drifts, by time and then by hash. Byte by byte: strings are collated as the server's locale has it.
local function later(a, b)
  for i = 1, 38 do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x > y and a or b end
  end
  return a
end

local head, flags = counted(), byte(v, 75)
local new
if sub(v, 43, 74) == sub(sighting, 7) then
  redis.call('SETRANGE', KEYS[1], 20, head)
  if unchanged then return 1 end
  new = sub(v, 1, 20) .. head .. sub(v, 31)
elseif flags % 2 == 1 then
  local drifts = unpack_int('>I4', v, 76)
  if drifts < MAX_COUNT then drifts = drifts + 1 end
  local changed = head .. sub(v, 31, 75) .. pack_int('>I4', drifts) .. later(sub(v, 80, 117), sighting)
  redis.call('SETRANGE', KEYS[1], 20, changed)
  if unchanged then return 1 end
  new = sub(v, 1, 20) .. changed .. sub(v, 118)
else
  new = sub(v, 1, 20) .. head .. sub(v, 31, 74) .. string.char(flags + 1) .. pack_int('>I4', 1) .. sighting .. sub(v, 76)
  redis.call('SET', KEYS[1], new, 'KEEPTTL')
  if unchanged then return 1 end
end
return { new }
