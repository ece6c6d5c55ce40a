-- Marks devices, and notes how far the hash has come.
--
-- KEYS 1    a hash: device -> version of its mark; '' -> upto
-- ARGV 1    from: what lies between from and upto is in the list; -1: the list is complete
--      2    upto
--      3    version, which no other call has
--      4..  the devices
-- Returns 1; 0, and nothing is done, if the hash has not come as far as from.
--
-- Invariant: each device that had an open task when the news upto were read has a mark,
-- unless somebody saw later that it has none.
local from = tonumber(ARGV[1])
local has = tonumber(redis.call('HGET', KEYS[1], '') or '-1')
if from >= 0 and has < from then
  return 0
end
for i = 4, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[3])
end
if from < 0 or has < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], '', ARGV[2])
end
return 1
