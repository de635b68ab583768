-- transition::amend. KEYS: slot. ARGV: the claim part that was read, and the one to stand there (each: identity, flags, won at,
-- lease and take-over as in a value); the notes to stand there; the response section to stand there, or nothing to leave it;
-- this sighting's time and payload hash, or nothing; and, where they are short, the whole value that was read and the whole one
-- to stand there.
-- Replies 1 where done and the whole value was the one read (the caller knows what stands there now), in a list where done
-- otherwise, the value as it stands without its response section, else what stands there (nil: nothing).
local v = redis.call('GET', KEYS[1])
if not v then return false end
-- What nearly every call finds. The encoder wrote these very bytes, so they are no damaged value.
if ARGV[7] and v == ARGV[6] then
  redis.call('SET', KEYS[1], ARGV[7], 'KEEPTTL')
  return 1
end
-- readable.lua
local is_readable, claim_at, source_at, response_at, notes_at = readable(v)
if not is_readable then return v end
local read, to, notes, response, sighting = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local flags, first_seen = byte(v, 75), sub(v, 31, 36)
local lease_at, won_at = claim_at, first_seen
if bit.band(flags, 2) ~= 0 then
  lease_at, won_at = claim_at + 6, sub(v, claim_at, claim_at + 5)
end
-- Whether this is the claim part that stands; 28: the flags of lease, undurable and take-over.
local function stands(part)
  return sub(v, 1, 20) == sub(part, 1, 20) and bit.band(flags, 28) == bit.band(byte(part, 21), 28)
    and won_at == sub(part, 22, 27) and sub(v, lease_at, source_at - 1) == sub(part, 28)
end
local old_response = sub(v, response_at, notes_at - 1)
if not stands(read) then
  if stands(to) and sub(v, notes_at) == notes and (response == '' or response == old_response) then
    return { sub(v, 1, 74) .. string.char(bit.band(flags, 191)) .. sub(v, 76, response_at - 1) .. notes }
  end
  return v
end

-- counted.lua
-- drifted.lua
local head, drift = sub(v, 21, 30), sub(v, 76, claim_at - 1)
if sighting ~= '' then
  head = counted(v, sighting)
  if sub(v, 43, 74) ~= sub(sighting, 7) then drift = drifted(v, sighting) end
end
local to_won_at = sub(to, 22, 27)
if to_won_at == first_seen then to_won_at = '' end
local function flag(section, value) return section ~= '' and value or 0 end
local function value(with_response)
  local new_flags = flag(drift, 1) + flag(to_won_at, 2) + bit.band(byte(to, 21), 28) + bit.band(flags, 32)
    + flag(with_response, 64) + flag(notes, 128)
  -- The registration is that of what stands.
  return sub(to, 1, 2) .. sub(v, 3, 10) .. sub(to, 11, 20) .. head .. sub(v, 31, 74) .. string.char(new_flags)
    .. drift .. to_won_at .. sub(to, 28) .. sub(v, source_at, response_at - 1) .. with_response .. notes
end
redis.call('SET', KEYS[1], value(response ~= '' and response or old_response), 'KEEPTTL')
return { value('') }
