-- release: returns a slot to the baseline semaphore.
--
-- KEYS[1]  the counter (acquire.lua)
-- ARGV     not used
-- Returns  the new value of the counter, or 0 if the counter was 0
--
-- Invariant: the counter never becomes negative.

if tonumber(redis.call('GET', KEYS[1]) or '0') > 0 then
  return redis.call('DECR', KEYS[1])
end
return 0
