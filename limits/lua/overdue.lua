-- overdue: which reservations were not settled in time.
-- KEYS     keys.lua
-- ARGV     at most how many
-- Returns  their leases, the oldest first
local most = tonumber(ARGV[1])
check(most, 'argument')
return redis.call('ZRANGEBYSCORE', OPEN, '-inf', text(clock() - SETTLE), 'LIMIT', 0, most)
