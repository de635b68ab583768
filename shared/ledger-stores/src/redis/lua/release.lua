-- transition::release. KEYS: slot. ARGV: the identity of the PENDING that was won.
-- readable.lua
local v = redis.call('GET', KEYS[1])
if v and sub(v, 1, 20) == ARGV[1] and readable(v) then redis.call('DEL', KEYS[1]) end
return 1
