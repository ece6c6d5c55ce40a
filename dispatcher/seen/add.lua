-- add: records the times of the last reports of devices. If KEYS[1] then has more devices than ARGV[1], the
-- devices with the oldest times are removed.
--
-- KEYS[1]  ZSET  name of a device -> time of its last report (ms since 1970)
-- ARGV[1]  maximum number of devices in KEYS[1]
-- ARGV[2...]  pairs of two arguments: time of a report (ms since 1970), name of the device
-- Returns  number of devices in KEYS[1]
--
-- Invariants: a stored time never decreases, so a repeated call changes nothing. Devices with equal times are
-- sorted by name.

for i = 2, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], 'GT', ARGV[i], ARGV[i + 1])
end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[1]))
return redis.call('ZCARD', KEYS[1])
