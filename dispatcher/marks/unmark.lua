-- unmark: deletes the mark of a device, unless the device was marked again.
--
-- KEYS[1]  HASH  the marks (mark.lua)
-- ARGV[1]  the device
-- ARGV[2]  version of the mark, read before the ledger was searched for work of the device
-- Returns  1 if the mark was deleted
--          0 if the device has a mark with another version, or no mark

if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
