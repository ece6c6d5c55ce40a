-- add: remembers when devices were seen, the latest time of each, and of all
-- devices the newest.
-- KEYS     1  ZSET  device -> last seen (ms since 1970)
-- ARGV     how many devices are kept, then per device: last seen, device
-- Returns  how many are kept now
-- Sent again it changes nothing. Equal times sort by name.
for i = 2, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], 'GT', ARGV[i], ARGV[i + 1])
end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[1]))
return redis.call('ZCARD', KEYS[1])
