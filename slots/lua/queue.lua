-- queue: decides which waiter (a device that waits for a slot of the pool) gets the next free slot. It
-- stores the waiters, their offers (a slot that is reserved for a waiter for some seconds) and their
-- timers. batch_order.lua decides which batch is first. The keys of the queue are hints: a lost or wrong
-- key delays grants, but never causes a grant beyond the capacity (core.lua). If a key of the queue is
-- lost, the queue is emptied, and the next reports of the devices fill it again. scripts.go puts this
-- file behind core.lua and batch_order.lua, and in front of scripts that use it as `queue`.
--
-- KEYS[5]  queue  ZSET  all scores are 0, so the members are sorted as text
--     "class|batch|order|device"  one waiter:
--         class  T  notifiable: the device can be notified of an offer, and has no offer
--                O  offered: the device has an offer
--                P  poller: the device is not notified of offers, and has no offer. A device that can be
--                   notified becomes a poller if its offer lapses or an update of kind 'away' arrives
--         batch  id of the batch, 16 digits
--         order  27 characters that sort the waiters of a batch: 10 digits that decrease with the
--                priority of the task, '|', 16 digits of the task id
--     "H|batch|lease"  one held slot: H, the id of the batch, and the id of the lease that holds the slot
-- KEYS[6]  waiter  HASH  device -> JSON object (a waiter):
--     device, batch, order, class  as in the member of KEYS[5]
--     reach     way to notify the device: 0 none (a poller), 1 push, 2 parked report
--     foreseen  number of the grant with which the waiter is expected to get a slot. The grants of the
--               queue are numbered: state.grants is the number of the latest grant
--     due       time (ms) at which the device was asked to report again
--     The following fields exist only while the waiter has an offer:
--     offer     id of the offer: the time of the offer in microseconds
--     ends      time (ms) at which the offer lapses
--     told      true if the offer need not be sent: it was sent already, or it is for a poller
--     kept      true if the offer is for a poller: the slot is kept until the poller reports, and the
--               poller is not notified
-- KEYS[7]  timer  ZSET  device -> time (ms). The meaning of the time depends on the class of the waiter:
--     class O     time at which the offer lapses, or at which an unsent offer is returned again
--     class T, P  time at which the waiter is removed because its device did not report
-- KEYS[8]  batch  HASH
--     batch  -> the record of a batch (batch_order.lua)
--     "pool" -> JSON object (the state of the queue):
--         grants  number of grants of this queue
--         kept    time (ms) up to which the budget for kept slots is spent (keep_for_poller)
--         capacity, offered  number of slots, and of offered slots, after the latest change of the queue
--         vain    number of offers that lapsed in a row since a device last used its offer. Offers that
--                 keep a slot for a poller do not count
--         offer   id of the latest offer
--         now     time (ms) of the latest change of the queue
--         time, weights, percent, lane, urgent  as in batch_order.lua
-- KEYS[9]  contest  ZSET  as in batch_order.lua
-- KEYS[10] owed  ZSET  device -> foreseen (KEYS[6]); contains the pollers that are owed a slot
--
-- Order. The next slot goes to a waiter of the first batch (batch_order.lua). Inside a batch, the slot
-- goes to the waiter whose task has the highest priority. If priorities are equal, it goes to the
-- waiter with the oldest task.
--
-- Offers. A free slot is offered at once. If a poller is expected soon, the slot is kept for the poller,
-- provided that the poller is owed a slot, or that its batch is urgent or holds less than its share
-- (keep_for_poller). Otherwise the slot is offered to the first waiter of class T in the contest. A slot
-- that is offered to no waiter goes to the next device that asks. A poller is owed a slot if, when it
-- asks, state.grants is at least the capacity above its foreseen number. The foreseen number of a new
-- waiter is higher than state.grants, so no poller starves.
--
-- Invariants, before and after every script that changes the queue:
--   Every waiter has one field in KEYS[6], one member in KEYS[5] and one timer in KEYS[7].
--   Every held slot has one member with class H in KEYS[5].
-- If Redis lost a key other than KEYS[10], repair_queue detects this from the sizes of the keys.
-- repair_queue does not compare the contents of the keys.

local queue = {}
-- Maximum number of slots that one run of queue.offer offers, and of timers that one run of
-- handle_timers handles.
local MAX_PER_CALL = 100
-- Maximum number of timers (one for each waiting device) that one run of keep_for_poller examines.
local MAX_KEEP_CANDIDATES = 16
-- Maximum number of waiters of each class (T, O, P) that one update of kind 'closed' removes.
local MAX_CLOSED = 200
-- The reach (way to notify) of a waiter whose device has a parked report: a report that a replica of
-- the dispatcher answers later.
local PARKED = 2
-- Time in ms. If an offer is not sent to its device, it is returned to the caller again after this time.
local RESEND_AFTER = 500
-- Time in ms. keep_for_poller keeps a slot only for a poller whose next report is due within KEEP_WINDOW.
local KEEP_WINDOW = turn.KEEP_WINDOW
-- Time in ms. A slot that is kept for a poller is released if the poller does not report within
-- KEEP_GRACE after its report was due.
local KEEP_GRACE = 1000
local KEEP_DIVISOR = turn.KEEP_DIVISOR
-- Limits the budget for kept slots, in ms. keep_for_poller chooses no poller while state.kept is more
-- than MAX_KEPT_AHEAD / capacity ms after the present time.
local MAX_KEPT_AHEAD = 200000
-- If this number of offers lapsed in a row, later offers last for a shorter time (SHORTER_FACTOR).
local LAPSED_SERIES = 10
-- After LAPSED_SERIES lapsed offers in a row, the duration of an offer is divided by this factor.
local SHORTER_FACTOR = 6

-- offer_time: returns the time (ms) at which a slot was offered to waiter w. w must have an offer.
local function offer_time(w)
  return math.floor(tonumber(w.offer) / 1000)
end

-- offered_count: returns the number of offered slots: the slots that are reserved for a waiter. It asks
-- Redis only if q.offered is not set yet.
local function offered_count(q)
  q.offered = q.offered or order.count_members(q, 'O')
  return q.offered
end

-- queue.left: returns the number of slots that are neither held nor offered. The number is negative if
-- more slots are held and offered than the capacity, for example after a decrease of the capacity.
function queue.left(q)
  return q.pool.capacity - q.pool.held - offered_count(q)
end

-- queue.waiter: returns the waiter of the device: the JSON object that KEYS[6] stores for a waiting device,
-- as a table. It returns nil if the device does not wait.
function queue.waiter(q, device)
  local text = order.queue_size(q) > 0 and redis.call('HGET', q.waiter, device)
  return text and cjson.decode(text) or nil
end

-- queue.waiters: returns the first `limit` waiters of a class, in the order of KEYS[5] (the queue). If limit
-- is -1, it returns all of them. The arguments after limit are the class (T, O or P) and, optionally, the
-- id of a batch; with a batch, only its waiters are returned.
function queue.waiters(q, limit, ...)
  local from, to = order.member_range(...)
  local all = redis.call('ZRANGEBYLEX', q.queue, from, to, 'LIMIT', 0, limit)
  for i, member in ipairs(all) do
    -- The device is the end of the member. Before it are class, batch and order (1 + 16 + 27
    -- characters) and three separators.
    all[i] = queue.waiter(q, string.sub(member, 48))
  end
  return all
end

-- move_waiter: moves waiter w (a waiting device) to the class T (notifiable), O (has an offer) or P (poller),
-- and writes the waiter and its timer. If class is nil, the waiter is removed from the queue. If class
-- is not O and the waiter has an offer, the offer ends; then the waiter is not owed a slot until it asks
-- again. Returns nil.
local function move_waiter(q, w, class)
  local b = order.load_batch(q, w.batch)
  -- delta is 1 if the waiter gets an offer, -1 if it loses its offer, else 0.
  local delta = (class == 'O' and 1 or 0) - (w.class == 'O' and 1 or 0)
  q.offered = offered_count(q) + delta
  q.size = order.queue_size(q) + (class and 1 or 0) - (w.class and 1 or 0)
  if w.offer and class ~= 'O' then
    -- The slot is no longer kept for this poller. The time that remains until w.ends is returned to the
    -- budget for kept slots.
    if w.kept then
      q.state.kept = q.state.kept - math.max(w.ends - q.now, 0) * KEEP_DIVISOR / math.max(q.pool.capacity, 1)
    end
    w.offer = nil
    w.ends = nil
    w.told = nil
    w.kept = nil
    redis.call('ZREM', q.owed, w.device)
  end

  -- member: returns the member of w in KEYS[5].
  local function member()
    return table.concat({ w.class, w.batch, w.order, w.device }, '|')
  end

  if w.class then
    redis.call('ZREM', q.queue, member())
  end
  w.class = class
  if not class then
    redis.call('HDEL', q.waiter, w.device)
    redis.call('ZREM', q.timer, w.device)
    redis.call('ZREM', q.owed, w.device)
  else
    -- timer_at is the time of the timer. The timer of an offer expires when the offer lapses; if the offer
    -- is not sent yet, the timer expires after RESEND_AFTER, if that is earlier. The timer of a waiter
    -- without an offer expires when its report is overdue by one period plus KEEP_WINDOW.
    local timer_at = w.offer and (w.told and w.ends or math.min(w.ends, q.now + RESEND_AFTER))
      or turn.timer(q.pace, w)
    redis.call('ZADD', q.queue, 0, member())
    redis.call('ZADD', q.timer, core.text(timer_at), w.device)
    redis.call('HSET', q.waiter, w.device, cjson.encode(w))
  end
  order.change_held(q, b, delta)
end

-- add_offer: writes waiter w with its offer (w.offer, w.ends), and appends the offer to q.offers, the
-- list of offers that the caller must send. Each time the timer of the offer expires before an update of
-- kind 'sent' arrives or the offer lapses, handle_timers calls add_offer again.
local function add_offer(q, w)
  move_waiter(q, w, 'O')
  q.offers[#q.offers + 1] = {
    device = w.device,
    batch = w.batch,
    task = string.sub(w.order, 12),
    reach = w.reach,
    id = w.offer,
    left = w.ends - q.now,
    age = q.now - offer_time(w),
  }
end

-- handle_timers: handles at most MAX_PER_CALL expired timers of waiters (waiting devices):
--   If the waiter has no offer, the waiter is removed.
--   If the waiter has an offer that was not sent, the offer is returned to the caller again.
--   If the offer of the waiter lapsed, the waiter becomes a poller (class P). No offer is sent to it until
--   it asks, but keep_for_poller may keep a slot for it.
-- If missed is true, handle_timers also returns unsent offers whose timer has not expired, if the waiter
-- has a parked report and the offer is at least RESEND_AFTER ms old. The caller may be the replica that
-- parks this report and did not receive the offer earlier.
local function handle_timers(q, missed)
  -- Sorted by the time of their timers, the first expired_count devices have an expired timer.
  local expired_count = redis.call('ZCOUNT', q.timer, '-inf', core.text(q.now))
  for i, device in ipairs(redis.call(
    'ZRANGEBYSCORE',
    q.timer,
    '-inf',
    core.text(q.now + (missed and RESEND_AFTER or 0)),
    'LIMIT',
    0,
    MAX_PER_CALL
  )) do
    local w = queue.waiter(q, device)
    if i <= expired_count
      or w.offer and not w.told and w.reach == PARKED and offer_time(w) <= q.now - RESEND_AFTER
    then
      if w.offer and w.ends <= q.now and not w.kept then
        q.state.vain = q.state.vain + 1
      end
      if not w.offer then
        move_waiter(q, w, nil)
      elseif w.ends > q.now then
        add_offer(q, w)
      else
        move_waiter(q, w, 'P')
      end
    end
  end
end

-- repair_queue: compares the sizes of the keys of the queue. If a key was lost or the clock was set
-- back, it deletes all keys of the queue. If only the members of the held slots (class H) are wrong, it
-- writes these members again from core.holders.
local function repair_queue(q)
  local waiters = order.queue_size(q)
  local entries = redis.call('ZCARD', q.queue)
  local s = q.state
  -- recorded_held is the number of held slots according to the queue (members of class H). Usually the
  -- size of KEYS[5] shows that it is equal to q.pool.held; otherwise the members are counted.
  local recorded_held = entries == waiters + q.pool.held and q.pool.held or order.count_members(q, 'H')
  -- The conditions below show a lost key or a clock that was set back. In an intact queue, every waiter
  -- has one timer and one member in KEYS[5]. A queue with waiters has a state. A queue with a waiter of
  -- class T has an entry in the contest.
  if redis.call('ZCARD', q.timer) ~= waiters
    or entries - recorded_held ~= waiters
    or s.now > q.now + 1000
    or waiters > 0 and s.now == 0
    or waiters > 0 and order.count_members(q, 'T') > 0 and redis.call('ZCARD', q.contest) == 0
  then
    redis.call('DEL', q.queue, q.waiter, q.timer, q.batch, q.contest, q.owed)
    recorded_held = 0
    q.size = 0
    q.offered = 0
    s.weights = 0
    s.lane = 0
    s.urgent = 0
    s.kept = q.now
    s.offer = '0'
  end
  -- KEYS[5] (the queue) has one member for each held slot, so there is nothing to repair.
  if recorded_held == q.pool.held then
    return
  end
  redis.call('ZREMRANGEBYLEX', q.queue, order.member_range('H'))
  for _, r in ipairs(core.holders(q.pool)) do
    redis.call('ZADD', q.queue, 0, 'H|' .. r.batch .. '|' .. r.lease)
  end
  order.delete_idle_batches(q)
end

-- queue.open: reads the state of the queue of a known pool. It writes nothing. keys is KEYS of the
-- script; pool is the table that core.pool returned. queue.open returns q, a table that all functions of
-- this file and of batch_order.lua receive. The fields of q:
--   queue, waiter, timer, batch, contest, owed  names of the keys KEYS[5] to KEYS[10]
--   pool     the table that core.pool returned
--   state    the state of the queue ("pool" in KEYS[8])
--   now      time of Redis in ms
--   batches  cache of the batches that were read: id of the batch -> batch (order.load_batch)
--   changed  batches that order.update_batches must process: id of the batch -> batch
--   fields   fields and values that order.write_batches must write to KEYS[8]
--   offers   list of the offers that the caller must send (add_offer)
--   size     number of waiters; nil if it has not been read yet
--   offered  number of offered slots; nil if it has not been read yet
--   has_new_batch  true if a batch was read that has no record in KEYS[8]
--   The following fields exist only after queue.start:
--   pace      table of times in ms (queue.start)
--   max_owed  maximum number of pollers that count as owed a slot at a time
function queue.open(keys, pool)
  local state = redis.call('HGET', keys[8], 'pool')
    or '{"grants":0,"capacity":0,"offered":0,"time":0,"weights":0,"kept":0,"vain":0,"offer":"0","now":0,"percent":0,"lane":0,"urgent":0}'
  return {
    queue = keys[5],
    waiter = keys[6],
    timer = keys[7],
    batch = keys[8],
    contest = keys[9],
    owed = keys[10],
    pool = pool,
    state = cjson.decode(state),
    now = core.now(),
    batches = {},
    changed = {},
    fields = {},
    offers = {},
  }
end

-- open_for_change: opens the queue, repairs it and handles expired timers. The arguments and the result
-- are those of queue.start. It raises an error if a key has an unexpected type or content.
local function open_for_change(keys, pool, pace, missed)
  local q = queue.open(keys, pool)
  q.pace = pace
  q.max_owed = turn.max_owed(pool.capacity)
  q.state.kept = math.max(q.state.kept, q.now)
  repair_queue(q)
  if order.queue_size(q) > 0 then
    handle_timers(q, missed)
  end
  return q
end

-- queue.start: opens the queue of a known pool for a script that changes the queue. It also repairs the
-- queue and handles expired timers. Returns q (queue.open). The arguments:
--   keys     KEYS of the script
--   pool     the table that core.pool returned
--   missed   true if unsent offers for parked reports are returned again (handle_timers)
--   pace     table of times in ms, as in turn.lua, and:
--     offer    duration of an offer; if it is 0, slots are not offered to devices that can be notified
function queue.start(keys, ...)
  local ok, q = pcall(open_for_change, keys, ...)
  -- A key has a content that is not a queue, so all keys of the queue are deleted. The queue is then
  -- opened again, without waiters.
  if not ok then
    redis.call('DEL', unpack(keys, 5, 10))
  end
  return ok and q or open_for_change(keys, ...)
end

-- next_report: returns two values for waiter w: the time (ms, not rounded) after which it is asked to
-- report again, and its position (1 means that it gets the next grant). chance (0 to 1) makes the
-- times of several devices different. batch_rank is the rank of w among the waiters of its batch, from 1. If
-- w is a poller of an urgent batch that has precedence, urgent_rank is its rank, from 0. For every other
-- waiter, urgent_rank is nil or false.
local function next_report(q, w, chance, batch_rank, urgent_rank)
  -- rank is urgent_rank, or the rank of w (from 0) among the pollers that are owed a slot. If w has no
  -- such rank, rank is false.
  local rank = urgent_rank or redis.call('ZRANK', q.owed, w.device)
  local ahead = w.foreseen - q.state.grants
  -- A poller that has a rank asks again when the grant of its rank is expected, but not earlier than
  -- `soon`. This minimum time differs by chance and rank, so the pollers do not all ask at the same moment.
  if rank and q.pool.capacity > 0 then
    local expected = turn.owed_wait(q.pace, rank, q.pool.capacity, chance)
    local soon = math.min(q.pace.soonest * (1 + chance / 4 + rank / q.max_owed / 4), KEEP_WINDOW)
    return math.max(expected, soon), rank + 1
  end
  local after = turn.wait(q.pace, w, ahead, q.pool.capacity, chance, function()
    return batch_rank
  end)
  return after, math.max(ahead, 1)
end

-- queue.join: adds the device to the queue with want (the task that needs a slot). If the device waits
-- already, its waiter is updated, and an offer to the device ends. reach is the way to notify the device;
-- 0 means that it is a poller. chance is a number from 0 to 1 (next_report). foreseen, the number of the
-- grant with which the device is expected to get a slot, is computed again, but for a poller it never
-- increases, even if the task changes. A poller is owed a slot if state.grants is at least foreseen +
-- capacity. If pace.period is 0, the device is not added. Returns the time (ms) until the device is to
-- ask again, and its position in the queue.
function queue.join(q, device, want, reach, chance)
  local w = queue.waiter(q, device)
  local foreseen = w and w.foreseen
  if w and w.batch .. w.order ~= want.batch .. want.order then
    w = move_waiter(q, w, nil)
  end
  local b = order.load_batch(q, want.batch, want)
  order.set_closed(q, b, false)
  local place, batch_rank = order.position(q, device, want)
  w = w or { device = device, batch = want.batch, order = want.order }
  w.foreseen = math.min(reach == 0 and foreseen or math.huge, q.state.grants + place)
  w.reach = reach
  redis.call('ZREM', q.owed, device)
  if reach == 0 and q.state.grants >= w.foreseen + q.pool.capacity then
    redis.call('ZADD', q.owed, core.text(w.foreseen), device)
  end
  local urgent_rank = reach == 0
    and order.held_per_weight(q, b) < 0
    and place <= order.urgent_room(q)
    and place - 1
  local after, position = next_report(q, w, chance, batch_rank, urgent_rank)
  w.due = q.now + math.max(math.floor(after), q.pace.soonest)
  if q.pace.period > 0 then
    move_waiter(q, w, reach > 0 and 'T' or 'P')
  end
  return w.due - q.now, position
end

-- queue.grant: records that the device got a slot for the task of want. It removes the waiter of the
-- device, advances the virtual time of the batch, and adds a member for the held slot to KEYS[5] (the
-- queue).
function queue.grant(q, device, want)
  local w = queue.waiter(q, device)
  local b = order.load_batch(q, want.batch, want)
  order.set_closed(q, b, false)
  -- The device uses its offer, so the series of lapsed offers ends. A slot that was kept for a poller does
  -- not end the series.
  if w and w.offer and not w.kept then
    q.state.vain = 0
  end
  if w then
    move_waiter(q, w, nil)
  end
  order.advance_time(q, b)
  q.state.grants = q.state.grants + 1
  order.change_held(q, b, redis.call('ZADD', q.queue, 0, 'H|' .. b.name .. '|' .. want.lease))
end

-- queue.release: removes from KEYS[5] (the queue) the member of a slot that was freed. r is the former
-- holder of this slot, which core.take returned.
function queue.release(q, r)
  local b = order.load_batch(q, r.batch)
  order.change_held(q, b, -redis.call('ZREM', q.queue, 'H|' .. r.batch .. '|' .. r.lease))
end

-- queue.update: applies the update u of a waiter. The fields of u are kind, device, offer and batch. If
-- u.offer is given and is not the id of the device's current offer, the update is ignored. The kinds:
--   sent    the offer was sent to the device, so handle_timers does not return the offer again
--   away    the device stays in the queue as a poller: no offer is sent to the device until it asks, but
--           keep_for_poller may keep a slot for it
--   left    the device leaves the queue
--   closed  no task of batch u.batch may start: the devices that wait with its tasks leave the queue, at
--           most MAX_CLOSED devices of each class. If more wait, the batch is closed (batch_order.lua)
--   opened  tasks of batch u.batch may start again: the batch is not closed any more
function queue.update(q, u)
  local w = queue.waiter(q, u.device)
  for _, class in ipairs(u.kind == 'closed' and { 'T', 'O', 'P' } or {}) do
    local waiters = queue.waiters(q, MAX_CLOSED, class, u.batch)
    for _, batch_waiter in ipairs(waiters) do
      move_waiter(q, batch_waiter, nil)
    end
    if #waiters == MAX_CLOSED then
      order.set_closed(q, order.load_batch(q, u.batch), true)
    end
  end
  if u.kind == 'opened' then
    order.set_closed(q, order.load_batch(q, u.batch), false)
  end
  if not w or u.offer and u.offer ~= w.offer then
    return
  end
  if u.kind == 'left' then
    move_waiter(q, w, nil)
  elseif u.kind == 'away' then
    move_waiter(q, w, 'P')
  end
  if u.kind == 'sent' and w.offer then
    w.told = true
    move_waiter(q, w, 'O')
  end
end

-- keep_for_poller: chooses a poller (a waiting device to which no offers are sent) for which a free slot is
-- kept until it reports. Only pollers that are expected to report before the next slots fall free can be
-- chosen, in one of three cases: the poller is one of the first q.max_owed pollers that are owed a slot;
-- or its batch holds less than its share; or its batch is urgent and has precedence. Of these pollers,
-- it chooses the one whose batch has the lowest held / weight; if this is equal, the one whose report is
-- due first. first_batch is the id of the first batch in the contest; batches with a higher held / weight
-- than first_batch are excluded. If first_batch is nil, no batch is excluded, because no batch in the
-- contest can get an offer.
-- keep_for_poller charges the budget for kept slots and sets ends, told and kept of the chosen waiter.
-- Returns this waiter, or nil if no poller is suitable.
local function keep_for_poller(q, first_batch)
  local max_ratio = math.huge
  if first_batch then
    max_ratio = order.held_per_weight(q, order.load_batch(q, first_batch))
  end
  -- If the budget for slots that are kept for pollers is spent, no slot is kept.
  if q.state.kept - q.now > MAX_KEPT_AHEAD / q.pool.capacity then
    return
  end
  -- The timer of a waiter without an offer expires period + KEEP_WINDOW after its report is due
  -- (move_waiter). So timer_now is the time at which the timer of a poller expires whose report is due now.
  local timer_now = q.now + q.pace.period + KEEP_WINDOW
  local w = nil
  local least_ratio = nil
  -- window is the time (ms) in which about two slots fall free, at most KEEP_WINDOW. A slot is kept only
  -- for a poller whose report is due within this time.
  local window = math.max(math.min(2 * q.pace.hold / q.pool.capacity, KEEP_WINDOW), KEEP_WINDOW / 100)
  for _, device in ipairs(redis.call(
    'ZRANGEBYSCORE',
    q.timer,
    core.text(timer_now - KEEP_GRACE),
    core.text(timer_now + window),
    'LIMIT',
    0,
    MAX_KEEP_CANDIDATES
  )) do
    local poller = queue.waiter(q, device)
    local b = order.load_batch(q, poller.batch)
    local ratio = order.held_per_weight(q, b)
    -- KEYS[10] contains the pollers that are owed a slot. A poller counts as owed only if it is one of the
    -- first q.max_owed pollers there.
    local is_owed = (redis.call('ZRANK', q.owed, device) or q.max_owed) < q.max_owed
    local is_suitable = poller.class == 'P'
      and not b.closed
      and ratio <= max_ratio
      and (ratio < 0 or order.is_below_share(q, b) or is_owed)
    -- The devices are sorted by the time at which they are due, so of several pollers with the same ratio
    -- the first is chosen.
    if is_suitable and (not w or ratio < least_ratio) then
      w = poller
      least_ratio = ratio
    end
  end
  if w then
    w.ends = math.max(w.due + KEEP_GRACE, q.now + 1)
    w.told = true
    w.kept = true
  end
  q.state.kept = q.state.kept + (w and w.ends - q.now or 0) * KEEP_DIVISOR / q.pool.capacity
  return w
end

-- queue.offer: offers free slots, at most MAX_PER_CALL, to waiters (waiting devices). Each slot is kept for a
-- poller (keep_for_poller). If no poller is suitable, the slot is offered to the first waiter of class T
-- (it can be notified) of the first batch in the contest. If there is no such waiter either, the slot
-- stays free for the next device that asks.
function queue.offer(q)
  for _ = 1, math.min(queue.left(q), order.queue_size(q), MAX_PER_CALL) do
    order.update_batches(q)
    local first_entry = nil
    local first_batch = nil
    if q.pace.offer > 0 then
      first_entry, first_batch = order.first_entry(q)
    end
    local w = keep_for_poller(q, first_batch) or first_entry and queue.waiters(q, 1, 'T', first_batch)[1]
    -- The first entry of the contest belongs to a batch without a waiter of class T, because a key of the
    -- queue was lost. The wrong entry is deleted.
    if first_entry and not w then
      order.delete_entry(q, first_entry)
    end
    if not w then
      break
    end
    -- The id of the new offer is the time in microseconds, but always higher than the id of the latest
    -- offer.
    q.state.offer = core.text(math.max(q.now * 1000, tonumber(q.state.offer) + 1))
    w.offer = q.state.offer
    local factor = q.state.vain < LAPSED_SERIES and 1 or SHORTER_FACTOR
    w.ends = w.ends or q.now + math.floor(q.pace.offer / factor)
    if w.kept then
      move_waiter(q, w, 'O')
    else
      add_offer(q, w)
    end
  end
end

-- queue.close: offers the free slots and writes the state of the queue. It must be the last call of a
-- script that changes the queue. Returns the table reply as JSON, with these fields added:
--   offers    list of the offers that the caller must send, each an object:
--       device, batch, task, reach  the waiter that has the offer (KEYS[6])
--       id                          id of the offer
--       left                        ms until the offer lapses
--       age                         ms since the offer was made
--   The following fields are added only if state is true:
--   capacity  number of slots
--   held      number of held slots
--   reserved  number of offered slots
--   ready     number of waiters of class T (they can be notified and have no offer)
--   waiting   number of waiters of all classes
function queue.close(q, reply, state)
  local p = q.pool
  queue.offer(q)
  order.update_batches(q)
  -- order.delete_idle_batches is slow, because it reads all batches. So it runs only if KEYS[8] has about
  -- twice as many batch records as there are waiters and held slots.
  if q.has_new_batch
    and redis.call('HLEN', q.batch) > 2 * (p.held + order.queue_size(q)) + MAX_PER_CALL
  then
    order.delete_idle_batches(q)
  end
  q.state.now = q.now
  q.state.capacity = p.capacity
  q.state.offered = offered_count(q)
  reply.offers = q.offers
  q.fields[#q.fields + 1], q.fields[#q.fields + 2] = 'pool', cjson.encode(q.state)
  order.write_batches(q)
  if state then
    reply.capacity = p.capacity
    reply.held = p.held
    reply.reserved = offered_count(q)
    reply.ready = order.count_members(q, 'T')
    reply.waiting = order.queue_size(q)
  end
  return cjson.encode(reply)
end

return queue
