-- mark: marks devices that have work. If a device has no mark, its report is answered without a read of the
-- ledger (the SQL database). So a device with work must have a mark. The script also records the position in
-- the news (rows of the ledger that list its changes) up to which the hash has all marks.
--
-- KEYS[1]  HASH  name of a device -> its mark: "version", or "version|wait" if the device waits for a slot
--                (record_wait.lua). A new mark has no wait
--                '' (empty field name) -> the position in the news
-- ARGV[1]  from: the caller has read the devices of all news rows after position `from`. If from is -1, the
--          caller has read all devices with an open task
-- ARGV[2]  to: position of the last news row that the caller has read
-- ARGV[3]  version of the new marks; no other call uses the same version
-- ARGV[4...]  names of the devices to be marked
-- Returns  1 if the devices were marked
--          0 if the position of the hash is lower than `from`, so that marks of news between these two
--            positions may be missing; then nothing was written
--
-- Invariant: each device that had an open task when the caller read the news up to the stored position has a
-- mark. The only exception is a device for which a later read of the ledger found no work.

local from = tonumber(ARGV[1])
local position = tonumber(redis.call('HGET', KEYS[1], '') or '-1')
if from >= 0 and position < from then
  return 0
end
for i = 4, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[3])
end
if from < 0 or position < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], '', ARGV[2])
end
return 1
