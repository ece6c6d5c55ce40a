-- acquire: takes a slot of the baseline semaphore, a plain counter.
--
-- KEYS[1]  the counter
-- ARGV[1]  capacity
-- Returns  1 if a slot was taken
--          0 if no slot is free

local count = tonumber(redis.call('GET', KEYS[1]) or '0')
if count >= tonumber(ARGV[1]) then
  return 0
end
redis.call('INCR', KEYS[1])
redis.call('EXPIRE', KEYS[1], 3600)
return 1
