-- adopt: makes holders of the ledger holders here.
-- KEYS     the pool (pool.lua)
-- ARGV     per holder: slot, lease, device, remaining_ms, age_ms, batch
-- Returns  per holder: 1 = this lease holds this slot now, 0 = another lease
--          does (nothing changed), -1 = unknown pool
-- Keeps    no holder is displaced. A lease that held another slot moves.
--          May exceed capacity, as a lowered capacity may: nothing is granted then.
local holders = #ARGV / 6
integer(holders, 1, MAX_CAPACITY, 'number of arguments')
for i = 0, holders - 1 do
  local at = 6 * i
  integer(ARGV[at + 1], 0, MAX_CAPACITY - 1, 'slot')
  integer(ARGV[at + 4], -2 ^ 52, 2 ^ 52, 'remaining')
  integer(ARGV[at + 5], 0, 2 ^ 52, 'age')
  integer(ARGV[at + 6], 0, 2 ^ 53, 'batch')
end

local capacity = known()
local now = now_ms()
local reply = {}

local function adopt(slot, lease, device, remaining, age, batch)
  local at = redis.call('HGET', LEASE, lease)
  if at == slot then
    redis.call('ZADD', FREE_AT, text(math.max(now + remaining, 1)), slot)
    return 1
  end
  if redis.call('HEXISTS', HOLDER, slot) == 1 then return 0 end
  if at then free(at, lease, capacity) end
  hold(slot, lease, device, batch, '', math.max(now - age, 0), now + remaining)
  return 1
end

for i = 0, holders - 1 do
  local at = 6 * i
  reply[i + 1] = capacity
    and adopt(slot_name(tonumber(ARGV[at + 1])), ARGV[at + 2], ARGV[at + 3],
      tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]), number_name(ARGV[at + 6]))
    or -1
end
return reply
