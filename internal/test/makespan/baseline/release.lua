-- release: returns a slot to the baseline semaphore. This semaphore is a plain counter; the benchmark
-- compares the dispatcher with it.
--
-- KEYS[1]  counter: number of slots that are taken (acquire.lua)
-- ARGV     not used
-- Returns  the new value of the counter; 0 if the counter was 0 already
--
-- Invariant: the counter never becomes negative.

if tonumber(redis.call('GET', KEYS[1]) or '0') > 0 then
  return redis.call('DECR', KEYS[1])
end
return 0
