-- transition::settle. KEYS: slot. ARGV: registration id, attempt and nonce; the settled value; its expiry, ms since 1970.
-- Replies 1 where done, else what stands there (nil: nothing).
local v = redis.call('GET', KEYS[1])
if not v then return false end
if sub(v, 3, 20) ~= ARGV[1] or not readable(v) then return v end
if byte(v, 2) == 1 then
  redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
end
return 1
