-- transition::replace. KEYS: slot. ARGV: the identity that was read; the PENDING to write; how long it stands, ms.
-- Replies 1 where done, else what stands there (nil: nothing).
-- readable.lua
local v = redis.call('GET', KEYS[1])
if not v then return false end
if sub(v, 1, 20) ~= ARGV[1] or not readable(v) then return v end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
