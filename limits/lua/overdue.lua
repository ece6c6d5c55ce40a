-- overdue: returns the reservations that are open for longer than SETTLE.
--
-- KEYS     as in keys.lua, without items
-- ARGV[1]  maximum number of leases
-- Returns  a list of leases, the oldest reservation first

local most = tonumber(ARGV[1])
check(most, 'argument')
return redis.call('ZRANGEBYSCORE', OPEN, '-inf', text(clock() - SETTLE), 'LIMIT', 0, most)
