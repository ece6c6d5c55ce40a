-- turn: computes the time at which a waiter (a device that waits for a slot) is asked to report again. It
-- calls no command of Redis. scripts.go puts this file in front of the scripts that need it as the table
-- `turn`.
--
-- The functions receive the table pace, with these times in ms:
--   hold     mean time for which a slot is held; 0 if unknown
--   soonest  minimum time until a refused device is asked to report again
--   period   time between two reports of a device; if it is 0, no device waits
--   sleep    maximum time until a waiter far back in its batch is asked to report again (turn.wait); if it is
--            0, only MAX_POLLER_PERIODS and MAX_NOTIFIED_PERIODS limit the time

local turn = {}
-- Time in ms with two uses. A waiter without an offer is removed pace.period + KEEP_WINDOW after its report was
-- due. A free slot is kept for a poller only if the report of the poller is due within KEEP_WINDOW (queue.lua).
turn.KEEP_WINDOW = 2000
-- Maximum time until a poller is asked to report again, in report periods. pace.sleep can raise it.
local MAX_POLLER_PERIODS = 3
-- Maximum time until a device that can be notified is asked to report again, in report periods. pace.sleep
-- can raise it.
local MAX_NOTIFIED_PERIODS = 8
-- A waiter far back in its batch reports after its expected wait divided by SLEEP_DIVISOR. So
-- while a slot is held, about SLEEP_DIVISOR waiters of the batch report. They are enough to fill the slots, even if
-- the capacity is raised or most devices fail.
local SLEEP_DIVISOR = 10

-- At most 1 / KEEP_DIVISOR of the time of all slots is spent on slots that are kept for pollers (queue.lua).
turn.KEEP_DIVISOR = 20

-- turn.max_owed: returns the maximum number of pollers that count as owed a slot at the same time. KEYS[10] in
-- queue.lua can contain more pollers. The pollers beyond the maximum do not count yet.
function turn.max_owed(capacity)
  return math.max(math.floor(capacity / turn.KEEP_DIVISOR), 3)
end

-- turn.timer: returns the time (ms) at which waiter w leaves the queue if its device does not report. w must
-- have no offer. keep_for_poller (queue.lua) computes the due time of a report from this time.
function turn.timer(pace, w)
  return w.due + pace.period + turn.KEEP_WINDOW
end

-- turn.wait: returns the time (ms, not rounded) after which waiter w is asked to report again. For a poller
-- with a rank (next_report in queue.lua), turn.owed_wait is used instead.
--  ahead       number of grants until the grant that w is expected to get; 0 or negative if this grant was made
--  capacity    number of slots
--  chance      number from 0 to 1; it makes the times of several devices different
--  batch_rank  function that returns the rank of w in its batch, from 1; called only if pace.sleep can raise the
--              maximum time
function turn.wait(pace, w, ahead, capacity, chance, batch_rank)
  local period = pace.period
  if capacity == 0 then
    return period
  end
  -- Mean time (ms) between two grants of the pool.
  local interval = pace.hold / capacity
  -- A waiter reports when its expected grant is due. If this grant was made already, the waiter reports when it
  -- becomes owed a slot: `capacity` grants after the expected one.
  local wait = (ahead > 0 and ahead or ahead + capacity) * interval
  local max_wait = MAX_POLLER_PERIODS * period
  -- A device that can be notified gets a message when a slot is offered to it, so it may report later.
  if w.reach > 0 then
    wait = wait + period
    max_wait = MAX_NOTIFIED_PERIODS * period
  end
  -- pace.sleep allows a longer wait. It is computed from the rank in the batch and not from `ahead`, so that
  -- the waiters report soon enough even if all earlier batches are cancelled.
  if wait > max_wait and pace.sleep > max_wait then
    max_wait = math.max(max_wait, math.min(batch_rank() * interval / SLEEP_DIVISOR, pace.sleep))
  end
  return math.min(wait, max_wait) * (0.9 + chance / 10)
end

-- turn.owed_wait: returns the time (ms, not rounded) after which a poller that is owed a slot is asked to
-- report again. It is the expected time until the grant of its rank (from 0), but at most one period, because a
-- slot can become free early if another device fails. capacity must not be 0.
function turn.owed_wait(pace, rank, capacity, chance)
  return math.min(rank * pace.hold / capacity, pace.period) * (0.9 + chance / 10)
end

return turn
