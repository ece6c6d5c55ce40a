-- unmark: deletes the mark of a device (a field which shows that the device has work). If the device was
-- marked again since the caller read the mark, the mark stays, because the device may have new work.
--
-- KEYS[1]  HASH  the marks (mark.lua)
-- ARGV[1]  name of the device
-- ARGV[2]  version of the mark. The caller reads it before it searches the ledger for work of the device
-- Returns  1 if the mark was deleted
--          0 if the device has no mark, or a mark with another version; then nothing was changed

local mark = redis.call('HGET', KEYS[1], ARGV[1])
if mark and string.match(mark, '^[^|]*') == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
