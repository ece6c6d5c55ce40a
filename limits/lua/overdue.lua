-- overdue: returns the reservations that are open for longer than SETTLE.
--
-- KEYS     as in keys.lua, without items
-- ARGV[1]  maximum number of leases
-- Returns  a list of leases, the oldest reservation first

local limit = tonumber(ARGV[1])
check(limit, 'argument')
return redis.call('ZRANGEBYSCORE', OPEN, '-inf', text(clock() - SETTLE), 'LIMIT', 0, limit)
