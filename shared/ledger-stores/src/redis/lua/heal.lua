-- transition::heal. KEYS: slot. ARGV: the identity of the row as PENDING; the row; its expiry, ms since 1970.
-- Replies 1 where the row was written, else 0.
-- readable.lua
local v = redis.call('GET', KEYS[1])
if v and (sub(v, 1, 20) ~= ARGV[1] or not readable(v)) then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
return 1
