-- KEYS: slot. ARGV: the value that was read, whole; the one to stand there; its expiry, ms since 1970.
-- Replies 1 where done, else what stands there (nil: nothing).
local v = redis.call('GET', KEYS[1])
if v ~= ARGV[1] then return v end
redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
return 1
