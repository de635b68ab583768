-- Stands in each script where its comment says so. `readable(v)` holds for exactly the values that
-- `ledger_domain::value::decode` reads, and then also gives where the sections of the claim, the source service, the response
-- and the notes begin. Offsets here count from 1. Numbers are doubles, exact to 2^53; the widest here has 48 bits. Strings are
-- only compared for equality.
local byte, sub, unpack_int, pack_int = string.byte, string.sub, struct.unpack, struct.pack
local MAX_MS = 253402207200000
local MAX_COUNT = 4294967295

-- UTF-8 of 1 to `max` bytes without control characters.
local function is_text(s, max)
  local len = #s
  if len < 1 or len > max then return false end
  if not string.find(s, '[^\32-\126]') then return true end
  local function continues(b, from, to) return b and b >= from and b <= to end
  local i = 1
  while i <= len do
    local a, b, c, d = byte(s, i, i + 3)
    if a < 0x80 then
      if a < 32 or a == 127 then return false end
      i = i + 1
    elseif a >= 0xC2 and a <= 0xDF then
      if not continues(b, a == 0xC2 and 0xA0 or 0x80, 0xBF) then return false end
      i = i + 2
    elseif a >= 0xE0 and a <= 0xEF then
      if not continues(b, a == 0xE0 and 0xA0 or 0x80, a == 0xED and 0x9F or 0xBF) then return false end
      if not continues(c, 0x80, 0xBF) then return false end
      i = i + 3
    elseif a >= 0xF0 and a <= 0xF4 then
      if not continues(b, a == 0xF0 and 0x90 or 0x80, a == 0xF4 and 0x8F or 0xBF) then return false end
      if not (continues(c, 0x80, 0xBF) and continues(d, 0x80, 0xBF)) then return false end
      i = i + 4
    else
      return false
    end
  end
  return true
end

local function readable(v)
  local size = #v
  if size < 75 or byte(v, 1) ~= 1 then return false end
  local state = byte(v, 2)
  if state < 1 or state > 5 then return false end
  local last_seen, first_seen, window_end = unpack_int('>I6I6I6', v, 25)
  if last_seen > MAX_MS or first_seen > MAX_MS or window_end > MAX_MS then return false end
  local flags = byte(v, 75)
  if flags == 0 then return size == 75, 76, 76, 76, 76 end
  local at = 76
  local function has(flag) return bit.band(flags, flag) ~= 0 end
  local function fits(len) return at + len - 1 <= size end
  local function is_time(offset) return unpack_int('>I6', v, at + offset) <= MAX_MS end
  if has(1) then -- drift
    if not fits(42) or not is_time(4) then return false end
    at = at + 42
  end
  local claim_at = at
  if has(2) then -- won at
    if not fits(6) or not is_time(0) then return false end
    at = at + 6
  end
  if has(4) then -- lease end
    if not fits(6) or not is_time(0) then return false end
    at = at + 6
  end
  if has(16) then -- take-over
    if not fits(28) or not (is_time(0) and is_time(16) and is_time(22)) then return false end
    at = at + 28
  end
  local source_at = at
  if has(32) then -- source service
    if not fits(1) then return false end
    local len = byte(v, at)
    if not fits(1 + len) or not is_text(sub(v, at + 1, at + len), 40) then return false end
    at = at + 1 + len
  end
  local response_at = at
  if has(64) then -- response
    if not fits(1) then return false end
    local len = byte(v, at)
    if not fits(1 + len + 4) or not is_text(sub(v, at + 1, at + len), 128) then return false end
    at = at + 1 + len
    len = unpack_int('>I4', v, at)
    if not fits(4 + len) then return false end
    at = at + 4 + len
  end
  local notes_at = at
  if has(128) then -- notes on the attempt: who asked for it, how it ended
    if not fits(1) then return false end
    local len = byte(v, at)
    if not fits(1 + len + 7) or not is_time(1 + len) then return false end
    if len > 0 and not is_text(sub(v, at + 1, at + len), 40) then return false end
    local reason_at = at + 1 + len + 6
    local has_end = unpack_int('>I6', v, reason_at - 6) ~= 0
    local reason_len = byte(v, reason_at)
    at = reason_at
    if not fits(1 + reason_len) then return false end
    if reason_len > 0 and not is_text(sub(v, at + 1, at + reason_len), 200) then return false end
    -- Nobody writes a reason without an end, or notes that say nothing.
    if not has_end and (reason_len > 0 or len == 0) then return false end
    at = at + 1 + reason_len
  end
  return at == size + 1, claim_at, source_at, response_at, notes_at
end

