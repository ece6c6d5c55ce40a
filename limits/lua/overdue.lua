-- overdue: returns the leases (ids of starts) of the overdue reservations. A reservation is overdue if it has
-- been open for longer than SETTLE ms: no process has counted or released its start.
--
-- KEYS     KEYS[1] to KEYS[3] as in keys.lua
-- ARGV[1]  maximum number of leases
-- Returns  a list of leases; the lease of the oldest reservation is first

local limit = tonumber(ARGV[1])
check(limit, 'argument')
return redis.call('ZRANGEBYSCORE', OPEN, '-inf', text(clock() - SETTLE), 'LIMIT', 0, limit)
