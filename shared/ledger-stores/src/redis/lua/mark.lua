-- KEYS: a marker. ARGV: the marker that a pass began with; the one to stand there. Replies 1 where it stands there, else 0.
local v = redis.call('GET', KEYS[1])
if v == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  return 1
end
return v == ARGV[2] and 1 or 0
