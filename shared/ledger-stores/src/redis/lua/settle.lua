-- transition::settle. KEYS: slot. ARGV: the PENDING that was won, whole, or its identity alone; the settled value; its
-- expiry, ms since 1970. Replies 1 where done, else what stands there (nil: nothing).
local v = redis.call('GET', KEYS[1])
if not v then return false end
-- What nearly every call finds. The encoder wrote these very bytes, so they are no damaged value (and an identity alone is
-- no value: `readable` would refuse its length).
if v == ARGV[1] and #v >= 75 then
  redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
  return 1
end
-- readable.lua
if sub(v, 3, 20) ~= sub(ARGV[1], 3, 20) or not readable(v) then return v end
if byte(v, 2) == 1 then
  redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
elseif byte(v, 2) ~= byte(ARGV[2], 2) then
  return v
end
return 1
