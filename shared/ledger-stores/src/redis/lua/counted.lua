-- Stands in each script where its comment says so. `counted(v, sighting)`: the count and the last sighting that `v` has after
-- one more sighting (its time, then its payload hash), whatever the payload.
local function counted(v, sighting)
  local count, last_seen = struct.unpack('>I4I6', v, 21)
  if count < 4294967295 then count = count + 1 end
  local later = struct.unpack('>I6', sighting) > last_seen
  return struct.pack('>I4', count) .. (later and string.sub(sighting, 1, 6) or string.sub(v, 25, 30))
end
