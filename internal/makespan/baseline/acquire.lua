-- KEYS[1] the counter, ARGV[1] the cap. Returns 1 when a slot was taken, 0 when there is none.
local count = tonumber(redis.call('GET', KEYS[1]) or '0')
if count >= tonumber(ARGV[1]) then
  return 0
end
redis.call('INCR', KEYS[1])
redis.call('EXPIRE', KEYS[1], 3600)
return 1
