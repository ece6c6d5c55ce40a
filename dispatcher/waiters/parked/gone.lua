-- gone: records that the connection of a parked report has ended, unless a newer report of the device was
-- parked. A parked report is a report that a replica answers later. A repeated call has the same effect.
--
-- KEYS[1]  the newest report of the device (newest.lua)
-- ARGV[1]  number of the report whose connection has ended
-- ARGV[2]  TTL of KEYS[1] in ms
-- Returns  a number:
--     1  the end was recorded, because no newer report of the device is known. Until the TTL is over, the next
--        call of newest.lua for the device returns gap = 1
--     0  a newer report of the device was parked, so nothing was written

local newest = redis.call('GET', KEYS[1])
if newest and string.match(newest, '^%d+') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1] .. ' -', 'PX', ARGV[2])
return 1
