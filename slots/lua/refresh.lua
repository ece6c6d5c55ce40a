-- refresh: answers the reports of waiters (devices that wait for a slot) that keep their place in the queue.
-- It only changes the time at which the next report of a waiter is due. If a waiter may get a slot or needs
-- another place in the queue, its result is 0, and the caller must run serve.lua for it. refresh.lua gives no
-- slot, makes no offer and repairs nothing. So it is faster than serve.lua. It needs 6 commands for one waiter,
-- and one more if the waiter is far back in its batch or is owed a slot (queue.lua).
--
-- KEYS     the ten keys of the pool, as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object:
--     pace    object with times in ms: hold, soonest, period, sleep (turn.lua)
--     askers  list of the devices that report, each an object:
--         device  name of the device
--         reach   way to notify the device: 0 none (a poller), 1 push, 2 parked report
--         chance  number from 0 to 1; it makes the next report times of several devices different
-- Returns  list with one number per asker: ms until its next report; 0 if it must be served by serve.lua
--
-- Invariant: a waiter keeps its place in the queue and its expected grant. If a key was lost or is wrong, a
-- device waits longer, but at most until the next run of serve.lua, which repairs the queue.

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

-- is_full: reports whether no slot is free for a device that reports. The first check is cheap and counts free
-- slot numbers. After a decrease of the capacity, slot numbers can be free although `capacity` slots are held,
-- so a second check compares the number of held slots with the capacity.
local function is_full()
  if redis.call('ZCOUNT', KEYS[2], 0, 0) <= state.offered then
    return true
  end
  local p = core.pool(KEYS)
  return p.capacity and p.capacity - p.held <= state.offered
end

-- Every asker must be served by serve.lua if a slot is free, if Redis lost the state, or if the clock was set
-- back.
local may_wait = state and pace.period > 0 and state.now <= now + 1000 and is_full()

-- steady_wait: returns the time (ms, not rounded) after which waiter w is asked to report again. It returns nil
-- or false if serve.lua must serve w. This is so if w has an offer or has missed one, if its device is notified
-- in another way than before, or if w is a poller that counts as owed a slot. ahead is the number of grants
-- until the grant that w is expected to get.
local function steady_wait(w, asker, ahead)
  local capacity = state.capacity
  if w.reach ~= asker.reach or w.class ~= (w.reach == 0 and 'P' or 'T') then
    return nil
  end
  if w.reach == 0 and ahead + capacity <= 0 and capacity > 0 then
    local rank = redis.call('ZRANK', KEYS[10], w.device)
    return rank and rank >= turn.max_owed(capacity) and turn.owed_wait(pace, rank, capacity, asker.chance)
  end
  -- batch_rank: returns the rank of w, from 1, among the waiters of its batch and class. Waiters of the other
  -- classes are not counted, so the rank can be too low. Then w reports sooner than necessary.
  local function batch_rank()
    local from = w.class .. '|' .. w.batch .. '|'
    return redis.call('ZLEXCOUNT', KEYS[5], '[' .. from, '(' .. from .. w.order .. '|' .. w.device) + 1
  end
  -- Waiter w was expected to get a grant, but did not get it. So the rank of w in its batch becomes the new
  -- estimate of `ahead`.
  if w.reach > 0 and ahead <= 0 then
    ahead = batch_rank()
  end
  return turn.wait(pace, w, ahead, capacity, asker.chance, batch_rank)
end

for i, asker in ipairs(args.askers) do
  local w = may_wait and waiters[i] and cjson.decode(waiters[i])
  local after = w and steady_wait(w, asker, w.foreseen - state.grants)
  results[i] = 0
  if after then
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
