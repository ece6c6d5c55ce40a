-- standing: where tasks stand in the line of a pool. Writes nothing.
-- KEYS     the pool (pool.lua, line.lua)
-- ARGV     per task: device, batch, weight, priority, task
-- Returns  nothing for an unknown pool; else capacity, held, length of the line;
--          then per task: its position if its device stood in line with it now,
--          the task that the device does stand with (as a string; "" = it does
--          not), ms until it was told to ask again (below 0: it is overdue)
local WAITER = 5
local waiters = {}
for i = 1, #ARGV / WAITER do
  local at = WAITER * (i - 1)
  waiters[i] = {
    device = ARGV[at + 1], batch = number_name(integer(ARGV[at + 2], 0, 2 ^ 53, 'batch')),
    weight = integer(ARGV[at + 3], 1, 2 ^ 20, 'weight'), priority = integer(ARGV[at + 4], -2 ^ 30, 2 ^ 30, 'priority'),
    task = integer(ARGV[at + 5], 0, 2 ^ 53, 'task'),
  }
end

local capacity, held = known()
if not capacity then return {} end
local now = now_ms()
local reply = { capacity, held, redis.call('ZCARD', LINE) }
for _, w in ipairs(waiters) do
  local own = redis.call('HGET', PLACE, w.device)
  local contest = contest_of(now, { w }, own, false)
  reply[#reply + 1] = position(contest, w, member_name(w, w.device), own)
  reply[#reply + 1] = own and text(tonumber(string.sub(own, 29, 44))) or ''
  reply[#reply + 1] = own and score(redis.call('ZSCORE', DUE, w.device) or text(now)) - now or 0
end
return reply
