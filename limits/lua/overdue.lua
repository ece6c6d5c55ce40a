-- overdue: returns the leases (ids of starts) of overdue reservations. A reservation counts a start before the
-- start happens. A reservation is overdue if no process has closed it (settle.lua) within SETTLE ms.
--
-- KEYS     KEYS[1] to KEYS[3] as in keys.lua
-- ARGV[1]  maximum number of leases
-- Returns  a list of leases; the lease of the oldest reservation is first

local limit = tonumber(ARGV[1])
check(limit, 'argument')
return redis.call('ZRANGEBYSCORE', OPEN, '-inf', text(clock() - SETTLE), 'LIMIT', 0, limit)
