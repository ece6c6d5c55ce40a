-- standing: where tasks stand in the line of a pool. Writes nothing.
-- KEYS     the pool (pool.lua, line.lua)
-- ARGV     as line.lua has it; then per task: device, batch, weight, priority, task
-- Returns  nothing for an unknown pool; else capacity, held, length of the line;
--          then per task: its position if its device stood in line with it now,
--          the task that the device does stand with (as a string; "" = it does
--          not), ms until it was told to ask again (below 0: it is overdue),
--          1 if it comes first of the device's tasks listed here, else 0
local WAITER = 5
local waiters = {}
for i = 1, (#ARGV - 5) / WAITER do
  local at = WAITER * (i - 1) + 5
  waiters[i] = {
    device = ARGV[at + 1], batch = number_name(integer(ARGV[at + 2], 0, 2 ^ 53, 'batch')),
    weight = integer(ARGV[at + 3], 1, 2 ^ 20, 'weight'), priority = integer(ARGV[at + 4], -2 ^ 30, 2 ^ 30, 'priority'),
    task = integer(ARGV[at + 5], 0, 2 ^ 53, 'task'),
  }
end

-- side is what decides between the tasks of one device: the contest that they
-- all are in, and the one of them that comes first.
local sides = {}
local function side(device, own, now)
  if sides[device] then return sides[device] end
  local wants = {}
  for _, w in ipairs(waiters) do
    if w.device == device then wants[#wants + 1] = w end
  end
  local contest = contest_of(now, wants, own, false)
  local first = wants[1]
  for _, w in ipairs(wants) do
    if sooner(contest, w, first) then first = w end
  end
  sides[device] = { contest = contest, first = first }
  return sides[device]
end

local capacity, held = known()
if not capacity then return {} end
local now = now_ms()
local reply = { capacity, held, redis.call('ZCARD', LINE) }
for _, w in ipairs(waiters) do
  local own = redis.call('HGET', PLACE, w.device)
  local mine = side(w.device, own, now)
  reply[#reply + 1] = position(mine.contest, w, member_name(w, w.device), own)
  reply[#reply + 1] = own and text(tonumber(string.sub(own, 29, 44))) or ''
  reply[#reply + 1] = own and score(redis.call('ZSCORE', DUE, w.device) or text(now)) - now or 0
  reply[#reply + 1] = mine.first == w and 1 or 0
end
return reply
