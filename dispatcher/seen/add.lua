-- add: records when devices were last seen, and deletes all but the newest devices.
--
-- KEYS[1]  ZSET  device -> time of the last report (ms since 1970)
-- ARGV[1]  maximum number of devices
-- ARGV[2...]  time, device; repeated
-- Returns  number of stored devices
--
-- Invariants: a stored time never decreases, so a repeated call changes nothing. Devices with equal
-- times are sorted by name.

for i = 2, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], 'GT', ARGV[i], ARGV[i + 1])
end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[1]))
return redis.call('ZCARD', KEYS[1])
