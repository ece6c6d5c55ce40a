-- handon: what became of waiters and of the offers to them; then what every
-- script does at its end: offers lapse, and what is free is offered.
-- KEYS     the pool (pool.lua, line.lua, offer.lua)
-- ARGV     as line.lua has it; then per piece of news: what, device, offer, batch:
--          SENT   the offer reached its device: it is not returned again
--          AWAY   the device keeps its place, but is told of nothing until it asks
--          LEFT   the device leaves the line
--          CLOSED the waiters of the batch leave the line, up to MAX_LEAVE of them
--          MISSED who calls has parked reports: offers to such devices that were
--                 not sent are returned though others were told of them
--          With an offer other than 0, AWAY and LEFT count only while the device
--          has that very offer.
-- Returns  nothing for an unknown pool; else capacity, held, reserved, ready,
--          waiting; then offers (offer.lua)
local SENT, AWAY, LEFT, CLOSED, MISSED = 0, 1, 2, 3, 4
local MAX_LEAVE = 2000

local function has_offer(device, id)
  return id == string.match(redis.call('HGET', OFFERED, device) or '', '^(%d+)|')
end

local function close(batch)
  local name = number_name(batch)
  for _, member in ipairs(redis.call('ZRANGEBYLEX', LINE, '[' .. name, '(' .. name .. '}', 'LIMIT', 0, MAX_LEAVE)) do
    leave(device_of_member(member))
  end
end

local missed = false
local function hear(what, device, id, batch)
  if what == MISSED then missed = true return end
  if what == CLOSED then return close(batch) end
  if id ~= '0' and not has_offer(device, id) then return end
  if what == SENT then redis.call('ZREM', UNSENT, device) end
  if what == AWAY then away(device) end
  if what == LEFT then leave(device) end
end

local NEWS = 4
for at = 6, #ARGV, NEWS do
  check(ARGV[at + 3], 'number of arguments')
  integer(ARGV[at], SENT, MISSED, 'news')
  integer(ARGV[at + 3], 0, 2 ^ 53, 'batch')
end
if not capacity then return {} end
for at = 6, #ARGV, NEWS do
  hear(tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
local now = now_ms()
return state_and_offers(now, missed)
