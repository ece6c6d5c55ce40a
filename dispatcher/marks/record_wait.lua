-- record_wait: records in the mark of a device (a field which shows that the device has work) that the device
-- waits for a slot. If the device was marked again since the caller read the mark, the mark stays unchanged,
-- because a wait would hide the new work.
--
-- KEYS[1]  HASH  the marks (mark.lua)
-- ARGV[1]  name of the device
-- ARGV[2]  version of the mark. The caller reads it before it searches the ledger for work of the device
-- ARGV[3]  the wait: "position|until|pool":
--     position  position in the news (the log of changes in the ledger) that the caller had read before it
--               read the device from the ledger (the SQL database)
--     until     time of the ledger in ms at which the wait may end, 0 if it does not end by itself
--     pool      name of the pool in whose queue the device waits
-- Returns  1 if the wait was recorded
--          0 if the device has no mark, or a mark with another version; then nothing was changed

local mark = redis.call('HGET', KEYS[1], ARGV[1])
if mark and string.match(mark, '^[^|]*') == ARGV[2] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. '|' .. ARGV[3])
  return 1
end
return 0
