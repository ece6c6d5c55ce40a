-- Notes that the connection of a parked report has ended, unless its device was
-- parked anew. It may be sent again.
--
-- KEYS[1]  of the device (newest.lua)
-- ARGV[1]  the number of the report    ARGV[2]  ms to remember
--
-- Returns 1 while no newer report of the device is known, else 0. A replica that
-- parks one later is told of the gap (newest.lua).
local newest = redis.call('GET', KEYS[1])
if newest and string.match(newest, '^%d+') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1] .. ' -', 'PX', ARGV[2])
return 1
