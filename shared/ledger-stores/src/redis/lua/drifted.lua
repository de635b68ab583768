-- Stands in each script where its comment says so. `drifted(v, sighting)`: the drift section that `v`, which is readable, has
-- after one more sighting of another payload than its first. `later(a, b)`: the later of two drifts, by time and then by hash.
local function later(a, b)
  -- Byte by byte: strings are collated as the server's locale has it.
  for i = 1, 38 do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x > y and a or b end
  end
  return a
end

local function drifted(v, sighting)
  if byte(v, 75) % 2 == 0 then return pack_int('>I4', 1) .. sighting end
  local drifts, last = unpack_int('>I4', v, 76), sub(v, 80, 117)
  if drifts < MAX_COUNT then drifts = drifts + 1 end
  return pack_int('>I4', drifts) .. later(last, sighting)
end
