-- turn: computes the time at which a waiter (a device that waits for a slot) is asked to report again. It
-- calls no command of Redis. scripts.go puts this file in front of the scripts that use it as `turn`.
--
-- The functions receive the table pace, with these times in ms:
--   hold     mean time for which a slot is held; 0 if unknown
--   soonest  minimum time until a refused device is asked to report again
--   period   time between two reports of a device; if it is 0, no device waits
--   sleep    maximum time until a waiter far back in its batch is asked to report again (turn.wait); if it is
--            0, only MAX_POLLER_PERIODS and MAX_NOTIFIED_PERIODS limit the time

local turn = {}
-- Time in ms, used twice. A waiter without an offer is removed one report period plus KEEP_WINDOW after its
-- report was due. A free slot is kept for a polling device only if its report is due within KEEP_WINDOW
-- (queue.lua).
turn.KEEP_WINDOW = 2000
-- Maximum time until a polling device is asked to report again, as a number of report periods. pace.sleep can
-- raise it for a device far back in its batch.
local MAX_POLLER_PERIODS = 3
-- Maximum time until a device that can be notified of a slot is asked to report again, as a number of report
-- periods. pace.sleep can raise it for a device far back in its batch.
local MAX_NOTIFIED_PERIODS = 8
-- A waiter far back in its batch reports after its expected wait divided by SLEEP_DIVISOR. So about
-- SLEEP_DIVISOR waiters of the batch report for each slot that becomes free. If the capacity is raised or
-- most devices fail, enough waiters still report soon.
local SLEEP_DIVISOR = 10

-- At most 1 / KEEP_DIVISOR of the time of all slots is spent on slots that are kept free for polling devices
-- (keep_for_poller in queue.lua).
turn.KEEP_DIVISOR = 20

-- turn.max_owed: returns how many of the pollers that are owed a slot (KEYS[10] in queue.lua) count as owed
-- at a time. The number is small, so that only a small part of the capacity is kept for them.
function turn.max_owed(capacity)
  return math.max(math.floor(capacity / turn.KEEP_DIVISOR), 3)
end

-- turn.timer: returns the time (ms) at which a waiting device without an offer leaves the queue if it does
-- not report.
function turn.timer(pace, w)
  return w.due + pace.period + turn.KEEP_WINDOW
end

-- turn.wait: returns the time (ms, not rounded) after which waiter w is asked to report again. For a waiter
-- with a rank (next_report in queue.lua), turn.owed_wait is used instead. The arguments:
--   ahead       number of grants until the grant that is expected to give w a slot; 0 or negative if that grant
--               was made already
--   capacity    number of slots
--   chance      number from 0 to 1; it makes the times of several devices different
--   batch_rank  function that returns the rank of w among the waiters of its batch, from 1. It is called only if
--               pace.sleep can raise the maximum time. A lower rank makes the time shorter
function turn.wait(pace, w, ahead, capacity, chance, batch_rank)
  local period = pace.period
  if capacity == 0 then
    return period
  end
  -- interval is the mean time (ms) between two grants of the pool.
  local interval = pace.hold / capacity
  -- A waiter reports again when its expected grant is due. If that grant was made already without a slot for
  -- w, w reports when it becomes owed a slot: `capacity` grants after the expected one.
  local wait = (ahead > 0 and ahead or ahead + capacity) * interval
  local max_wait = MAX_POLLER_PERIODS * period
  -- A device that can be notified of a slot gets a message when a slot is offered to it. So it may report
  -- later than a polling device.
  if w.reach > 0 then
    wait = wait + period
    max_wait = MAX_NOTIFIED_PERIODS * period
  end
  -- The longer sleep depends only on the rank in the batch, not on `ahead`. If all earlier batches are
  -- cancelled, the waiters of this batch then still report soon enough.
  if wait > max_wait and pace.sleep > max_wait then
    max_wait = math.max(max_wait, math.min(batch_rank() * interval / SLEEP_DIVISOR, pace.sleep))
  end
  return math.min(wait, max_wait) * (0.9 + chance / 10)
end

-- turn.owed_wait: returns the time (ms, not rounded) after which a poller (polling device) that is owed a
-- slot is asked to report again: when the grant of its rank is expected, at most one period. rank is its
-- rank, from 0, among these pollers. capacity must not be 0. The maximum is one period, because these pollers
-- take the slots that become free when the capacity is raised or other devices fail.
function turn.owed_wait(pace, rank, capacity, chance)
  return math.min(rank * pace.hold / capacity, pace.period) * (0.9 + chance / 10)
end

return turn
