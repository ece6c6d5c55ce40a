-- overdue: which reservations were not settled in time.
-- KEYS     keys.lua
-- ARGV     in which time (ms), at most how many
-- Returns  their leases, the oldest first
local before, most = tonumber(ARGV[1]), tonumber(ARGV[2])
check(before and most, 'argument')
return redis.call('ZRANGEBYSCORE', OPEN, '-inf', text(now_ms() - before), 'LIMIT', 0, most)
