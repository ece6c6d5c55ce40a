-- Takes the mark of a device away, unless it was marked again since.
--
-- KEYS 1  a hash of marks
-- ARGV 1  the device
--      2  the version of the mark that was seen before it was looked whether it has work
-- Returns 1; 0 if the device has another mark, or none.
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
