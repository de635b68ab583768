-- transition::heal. KEYS: slot. ARGV: the identity of the row as PENDING; the row; its expiry, ms since 1970.
-- Replies 1 where the row was written, else 0.
-- readable.lua
-- drifted.lua
-- Whether the record beneath is as the take-over found it: failed, or IN_PROGRESS with a lease that was over by then.
local function is_untouched(v, source_at)
  local state = byte(v, 2)
  if state == 4 then return true end
  if state ~= 3 then return false end
  if bit.band(byte(v, 75), 4) == 0 then return true end
  return unpack_int('>I6', v, source_at - 34) <= unpack_int('>I6', v, source_at - 12)
end

local v, own, row = redis.call('GET', KEYS[1]), ARGV[1], ARGV[2]
if v then
  local is_readable, claim_at, source_at = readable(v)
  if not is_readable then return 0 end
  if sub(v, 1, 20) ~= own then
    -- A take-over of this registration by the row's check: attempt and nonce of its section, the claim's last.
    if bit.band(byte(v, 75), 16) == 0 or sub(v, 3, 10) ~= sub(own, 3, 10)
      or sub(v, source_at - 22, source_at - 13) ~= sub(own, 11) or not is_untouched(v, source_at) then return 0 end
    local count, last_seen = unpack_int('>I4I6', v, 21)
    local row_count, row_last_seen = unpack_int('>I4I6', row, 21)
    local drift, flags, rest = sub(v, 76, claim_at - 1), byte(row, 75), sub(row, 76)
    if flags % 2 == 1 then
      local row_drift = sub(row, 76, 117)
      rest = sub(row, 118)
      if drift == '' then
        drift = row_drift
      else
        local drifts, row_drifts = unpack_int('>I4', drift), unpack_int('>I4', row_drift)
        drifts = math.max(drifts, row_drifts)
        drift = pack_int('>I4', drifts) .. later(sub(drift, 5), sub(row_drift, 5))
      end
    elseif drift ~= '' then
      flags = flags + 1
    end
    row = sub(row, 1, 20) .. pack_int('>I4I6', math.max(count, row_count), math.max(last_seen, row_last_seen))
      .. sub(row, 31, 74) .. string.char(flags) .. drift .. rest
  end
end
redis.call('SET', KEYS[1], row, 'PXAT', ARGV[3])
return 1
