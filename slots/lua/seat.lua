-- seat: lets devices stand in line that do not yet, as if they had asked and were
-- refused; then as handon.lua.
-- KEYS     the pool (pool.lua, line.lua, offer.lua)
-- ARGV     as line.lua has it; then per device: device, batch, weight, priority,
--          task, reach
-- Returns  as handon.lua
local SEAT = 6

local function sit(now, newest, device, want, reach)
  if redis.call('HEXISTS', PLACE, device) == 1 then return end
  join(device, member_name(want, device), now + period, reach)
  redis.call('HSET', BATCH, 'w' .. want.batch, text(want.weight))
  redis.call('ZADD', TURN, 'NX', newest, want.batch)
end

local seats = {}
for at = 6, #ARGV, SEAT do
  check(ARGV[at + 5], 'number of arguments')
  seats[#seats + 1] = {
    device = ARGV[at], reach = integer(ARGV[at + 5], 0, 9, 'reach'),
    want = {
      batch = number_name(integer(ARGV[at + 1], 0, 2 ^ 53, 'batch')), weight = integer(ARGV[at + 2], 1, 2 ^ 20, 'weight'),
      priority = integer(ARGV[at + 3], -2 ^ 30, 2 ^ 30, 'priority'), task = integer(ARGV[at + 4], 0, 2 ^ 53, 'task'),
    },
  }
end
if not capacity then return {} end
local now = now_ms()
mend()
local newest = redis.call('ZREVRANGE', TURN, 0, 0, 'WITHSCORES')[2] or '0'
for _, s in ipairs(seats) do sit(now, newest, s.device, s.want, s.reach) end
return state_and_offers(now)
