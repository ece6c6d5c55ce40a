-- refresh: handles the reports of waiters (waiting devices) that ask again while nothing changed for them. It only
-- moves the time at which a waiter is due. It gives no slot, makes no offer and repairs nothing: if a waiter may
-- get a slot or needs another place, its result is 0, and the caller asks again with serve.lua. For one waiter,
-- it runs 6 commands, and one more if the waiter is far back in its batch.
--
-- KEYS     the ten keys of the pool, as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object:
--     pace    object with times in ms: hold, soonest, period, sleep (turn.lua)
--     askers  list of askers, each an object:
--         device  name of the device
--         reach   way to notify the device: 0 none (a poller), 1 push, 2 parked report
--         chance  number from 0 to 1; it makes the next report times of several devices different
-- Returns  list with one number per asker: ms until its next report; 0 if it must be served by serve.lua
--
-- Invariant: the waiter, its place in the queue and its foreseen grant stay as they are. If a key was lost or is
-- wrong, a device at most waits until the next run of serve.lua, which repairs the queue.

local args = cjson.decode(ARGV[1])
local pace = args.pace
local names = {}
for i, asker in ipairs(args.askers) do
  names[i] = asker.device
end
local now = core.now()
local waiters = redis.call('HMGET', KEYS[6], unpack(names))
local state_text = redis.call('HGET', KEYS[8], 'pool')
local state = state_text and cjson.decode(state_text)
local results = {}
local timers = {}
local changed = {}

-- The state is unusable if Redis lost it or if the clock was set back. A slot is free if more slots are not held
-- than were offered after the latest change of the queue. In both cases, no asker keeps waiting.
local may_wait = state
  and pace.period > 0
  and state.now <= now + 1000
  and redis.call('ZCOUNT', KEYS[2], 0, 0) <= state.offered

-- keeps_waiting: reports whether waiter w, whose foreseen grant is `ahead` grants away, keeps its place. A poller
-- that is owed a slot does not. A device that can be notified must be notifiable (class T, so it has no offer),
-- and needs another place once its foreseen grant was made.
local function keeps_waiting(w, asker, ahead)
  if w.reach ~= asker.reach then
    return false
  end
  if w.reach == 0 then
    return w.class == 'P' and ahead + state.capacity > 0
  end
  return w.class == 'T' and ahead > 0
end

for i, asker in ipairs(args.askers) do
  local w = may_wait and waiters[i] and cjson.decode(waiters[i])
  local ahead = w and w.foreseen - state.grants
  results[i] = 0
  if w and keeps_waiting(w, asker, ahead) then
    -- The rank among the waiters of the same class is at most the rank among all waiters of the batch.
    local after = turn.wait(pace, w, ahead, state.capacity, asker.chance, function()
      local from = w.class .. '|' .. w.batch .. '|'
      return redis.call('ZLEXCOUNT', KEYS[5], '[' .. from, '(' .. from .. w.order .. '|' .. w.device) + 1
    end)
    results[i] = math.max(math.floor(after), pace.soonest, 1)
    w.due = now + results[i]
    timers[#timers + 1], timers[#timers + 2] = core.text(turn.timer(pace, w)), w.device
    changed[#changed + 1], changed[#changed + 2] = w.device, cjson.encode(w)
  end
end
if #changed > 0 then
  redis.call('ZADD', KEYS[7], unpack(timers))
  redis.call('HSET', KEYS[6], unpack(changed))
end
return results
