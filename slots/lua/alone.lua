-- alone: the usual acquire, in front of line.lua and acquire.lua, so that what it
-- does not need is not even set up: one device asks for one task, a place is free,
-- and nobody stands in line. Anything else goes on to acquire.lua, whose arguments
-- and answers these are.
local capacity, held = known()
if #ARGV == 16 and capacity and held < capacity
  and redis.call('ZCARD', KEYS[8]) == 0 and redis.call('ZCARD', KEYS[11]) == 0 and redis.call('HEXISTS', LEASE, ARGV[11]) == 0 then
  local ttl, batch = integer(ARGV[12], 1, 2 ^ 52, 'ttl'), integer(ARGV[13], 0, 2 ^ 53, 'batch')
  local now = now_ms()
  local slot = redis.call('ZRANGEBYSCORE', FREE_AT, 0, 0, 'LIMIT', 0, 1)[1]
  hold(slot, ARGV[11], ARGV[7], number_name(batch), ARGV[1] .. '.1', now, now + ttl)
  return { 2, tonumber(slot), 1, 0, 0 }
end
