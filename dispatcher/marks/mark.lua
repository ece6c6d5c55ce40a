-- mark: marks devices that have work, and records the position in the ledger's news that the marks
-- include.
--
-- KEYS[1]  HASH  device -> version of its mark; '' -> position
-- ARGV[1]  from: the devices occur in the news after position `from`; -1 if the list contains all
--          devices with an open task
-- ARGV[2]  to: position of the last news that was read
-- ARGV[3]  version of the marks; no other call uses the same version
-- ARGV[4...]  the devices
-- Returns  1 if the devices were marked
--          0 if the hash has not reached position `from`; then nothing was written
--
-- Invariant: a device that had an open task when the news up to the position were read has a mark,
-- unless a later read of the ledger found that it has no work.

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
