-- acquire: takes a slot of the baseline semaphore. This semaphore is a plain counter; the benchmark compares
-- the dispatcher with it.
--
-- KEYS[1]  counter: number of slots that are taken
-- ARGV[1]  capacity: maximum value of the counter
-- Returns  1 if a slot was taken
--          0 if no slot is free

local count = tonumber(redis.call('GET', KEYS[1]) or '0')
if count >= tonumber(ARGV[1]) then
  return 0
end
redis.call('INCR', KEYS[1])
redis.call('EXPIRE', KEYS[1], 3600)
return 1
