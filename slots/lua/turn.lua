-- turn: computes the time at which a waiter (a waiting device) is asked to report again. It reads and writes
-- nothing in Redis. scripts.go puts this file in front of the scripts that use it as `turn`.
--
-- The functions receive the table pace, with these times in ms:
--   hold     mean time for which a slot is held; 0 if unknown
--   soonest  minimum time until a refused device is asked to report again
--   period   time between two reports of a device; if it is 0, no device waits
--   sleep    maximum time until a waiter far back in its batch is asked to report again (turn.wait); 0
--            means that only the maximum numbers of periods apply

local turn = {}
-- Time in ms. If a waiter has no offer and its device does not report, the waiter is removed one report
-- period plus KEEP_WINDOW after the report was due. keep_for_poller (queue.lua) keeps a slot only for a poller
-- whose next report is due within KEEP_WINDOW.
turn.KEEP_WINDOW = 2000
-- Maximum time until a poller is asked to report again, as a number of report periods. pace.sleep raises
-- this maximum for waiters far back in their batch.
local MAX_POLLER_PERIODS = 3
-- Maximum time until a device that can be notified is asked to report again, as a number of report
-- periods. pace.sleep raises this maximum, too.
local MAX_NOTIFIED_PERIODS = 8
-- A waiter far back in its batch sleeps for its expected wait divided by SLEEP_DIVISOR. So the waiters of the
-- batch together ask about SLEEP_DIVISOR times for each slot that falls free, and slots find enough waiters
-- even if the capacity is raised or most devices fail.
local SLEEP_DIVISOR = 10

-- Limits the slots that are kept for pollers. At most 1 / KEEP_DIVISOR of the time of all slots is spent
-- on kept slots.
turn.KEEP_DIVISOR = 20

-- turn.max_owed: returns the number of pollers that count as owed a slot at a time, of all pollers that are
-- owed one (KEYS[10] in queue.lua).
function turn.max_owed(capacity)
  return math.max(math.floor(capacity / turn.KEEP_DIVISOR), 3)
end

-- turn.timer: returns the time (ms) at which waiter w without an offer is removed if its device does not report.
function turn.timer(pace, w)
  return w.due + pace.period + turn.KEEP_WINDOW
end

-- turn.wait: returns the time (ms, not rounded) after which waiter w, which has no rank (next_report in
-- queue.lua), is asked to report again.
--   ahead       number of grants until the grant with which w is expected to get a slot; 0 or negative if that
--               grant was made already
--   capacity    number of slots
--   chance      number from 0 to 1; it makes the times of several devices different
--   batch_rank  function that returns the rank of w among the waiters of its batch, from 1. It is called only if
--               pace.sleep can raise the maximum. A lower rank only makes the time shorter
function turn.wait(pace, w, ahead, capacity, chance, batch_rank)
  local period = pace.period
  if capacity == 0 then
    return period
  end
  -- interval is the mean time (ms) between two grants of the pool.
  local interval = pace.hold / capacity
  -- A waiter asks again when its foreseen grant is expected. If that grant was made already, the waiter asks
  -- at the time at which it will be owed a slot.
  local wait = (ahead > 0 and ahead or ahead + capacity) * interval
  local max_wait = MAX_POLLER_PERIODS * period
  -- A device that can be notified need not ask to get its slot, so its next report may be later.
  if w.reach > 0 then
    wait = wait + period
    max_wait = MAX_NOTIFIED_PERIODS * period
  end
  -- The sleep depends on the batch alone, not on foreseen: if all batches before it were cancelled, the
  -- waiters of this batch must still report soon enough.
  if wait > max_wait and pace.sleep > max_wait then
    max_wait = math.max(max_wait, math.min(batch_rank() * interval / SLEEP_DIVISOR, pace.sleep))
  end
  return math.min(wait, max_wait) * (0.9 + chance / 10)
end

-- turn.owed_wait: returns the time (ms, not rounded) after which a poller that is owed a slot is asked to
-- report again: when the grant of its rank is expected, at the latest after one period. rank is its rank, from 0,
-- among the pollers that are owed a slot. They do not sleep longer, because they take the slots that fall free when
-- the capacity is raised or other devices fail. capacity must not be 0.
function turn.owed_wait(pace, rank, capacity, chance)
  return math.min(rank * pace.hold / capacity, pace.period) * (0.9 + chance / 10)
end

return turn
