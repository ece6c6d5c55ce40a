-- gone: records that the connection of a parked report has ended, unless a newer report of the device
-- was parked. A repeated call has the same effect.
--
-- KEYS[1]  as in newest.lua
-- ARGV[1]  number of the report
-- ARGV[2]  TTL of KEYS[1] in ms
-- Returns  1 if no newer report of the device is known; newest.lua then returns gap = 1 to the next
--          report
--          0 if a newer report was parked; then nothing was written

local newest = redis.call('GET', KEYS[1])
if newest and string.match(newest, '^%d+') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1] .. ' -', 'PX', ARGV[2])
return 1
