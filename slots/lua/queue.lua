-- queue: decides which waiter gets the next free slot of a pool. batch_order.lua decides which batch is first.
-- This file decides which waiter of the batch is first. scripts.go puts this file in front of the scripts that
-- need it as the table `queue`. The keys of the queue are hints. A wrong key delays grants, but never causes a
-- grant beyond the capacity (core.lua). If a key is lost, the queue is emptied, and the next reports of the
-- devices fill it again.

-- Terms of this file:
--   waiter      a device that was refused a slot and waits for one
--   offer       a free slot that is reserved for one waiter for some seconds
--   poller      a waiter with reach 0: its device only polls. A waiter with another reach counts as a poller
--               from a missed offer or an update of kind 'away' until it asks or joins again
--   kept slot   a free slot that is reserved for a poller until its next report: an offer without a message
--   foreseen    number of the grant that is expected to give the waiter a slot. The grants of the pool are
--               numbered: state.grants is the number of the latest grant
--   owed        a poller with reach 0 is owed a slot if its expected grant is overdue by `capacity` grants: at
--               its latest report, state.grants was at least foreseen + capacity

-- KEYS[5]  queue  ZSET  all scores are 0, so the members are sorted as text:
--     "class|batch|order|device"  one waiter:
--         class  T  the device can be notified of an offer, and has no offer
--                O  the device has an offer
--                P  a poller: the device has no offer, and no offer is sent to it
--         batch  id of the batch, 16 digits
--         order  27 characters that sort the waiters of a batch: 10 digits that decrease with the
--                priority of the task, '|', 16 digits of the task id
--     "H|batch|lease"  one held slot: H, the id of the batch, and the id of the lease that holds the slot

-- KEYS[6]  waiter  HASH  device -> JSON object (a waiter):
--     device, batch, order, class  as in the member of KEYS[5]
--     reach     way to notify the device: 0 none (it polls), 1 push, 2 parked report (a report that a replica
--               answers later)
--     foreseen  number of the grant that is expected to give the waiter a slot
--     due       time (ms) at which the device was asked to report again
--     The following fields exist only while the waiter has an offer:
--     offer     id of the offer: the time of the offer in microseconds
--     ends      time (ms) at which the offer lapses
--     told      true if the offer need not be sent, because it was sent already or is a kept slot
--     kept      true if the offer is a kept slot

-- KEYS[7]  timer  ZSET  device of a waiter -> time (ms). The meaning of the time depends on the class of the waiter:
--     class O     (has an offer) time at which the offer lapses. For an offer that is not sent yet: time at which a
--                 script returns the offer to a replica again, so that the replica sends it
--     class T, P  (no offer) time at which the waiter is removed because its device did not report

-- KEYS[8]  batch  HASH
--     batch  -> the record of a batch (batch_order.lua)
--     "pool" -> JSON object (the state of the queue):
--         grants  number of grants of this queue
--         kept    time (ms) up to which the budget for kept slots is spent (keep_for_poller)
--         capacity  number of slots after the latest change of the queue
--         offered   number of offered slots after the latest change of the queue
--         vain    number of successive offers that lapsed unused; kept slots do not count
--         offer   id of the latest offer
--         now     time (ms) of the latest change of the queue
--         time, weights, percent, lane, urgent  as in batch_order.lua
-- KEYS[9]  contest  ZSET  the batches that have a waiter of class T, in their order (batch_order.lua)
-- KEYS[10] owed  ZSET  device -> its field foreseen; one member for each poller that is owed a slot

-- Order: the next slot goes to the first batch (batch_order.lua), and inside it to the waiter whose task has
-- the highest priority, then to the oldest task (lowest id).
-- Offers: keep_for_poller looks for a poller for which a free slot is kept. If no poller is suitable, the slot
-- is offered to the first waiter that can be notified (class T). If there is no such waiter, the next device
-- that asks gets the slot.
-- No poller with reach 0 waits forever: its field foreseen never increases, but each grant increases
-- state.grants. So it is owed a slot in the end.

-- Invariants, before and after every script that changes the queue (repair_queue checks the sizes of the
-- keys):
--  Every waiter has one field in KEYS[6], one member in KEYS[5] and one timer in KEYS[7].
--  Every held slot has one member with class H in KEYS[5].

local queue = {}
-- Maximum number of slots that queue.offer offers, and of timers that handle_timers handles, in one call.
local MAX_PER_CALL = 100
-- Maximum number of waiters that keep_for_poller examines.
local MAX_KEEP_CANDIDATES = 16
-- Maximum number of waiters of each class (T, O, P) that one update of kind 'closed' removes.
local MAX_CLOSED = 200
-- Value of w.reach for a parked report: a report that a replica answers later.
local PARKED = 2
-- Time in ms after which an offer is returned again if the caller has not confirmed that it was sent.
local RESEND_AFTER = 500
-- Time in ms within which the report of a poller must be due so that a slot is kept for it.
local KEEP_WINDOW = turn.KEEP_WINDOW
-- Time in ms by which a poller may be late before the slot that is kept for it is released.
local KEEP_GRACE = 1000
local KEEP_DIVISOR = turn.KEEP_DIVISOR
-- The budget for kept slots is 1 / KEEP_DIVISOR of the time of all slots. Kept slots may overdraw this budget
-- by MAX_KEPT_AHEAD slot-milliseconds (the number of slots multiplied by ms).
local MAX_KEPT_AHEAD = 200000
-- Number of successive unused offers after which new offers are shorter (SHORTER_FACTOR). A device that does
-- not answer then blocks a slot for less time.
local LAPSED_SERIES = 10
-- The duration of a shorter offer is the usual duration divided by SHORTER_FACTOR.
local SHORTER_FACTOR = 6

-- offer_time: returns the time (ms) at which waiter w got its offer. The id of the offer is this time in
-- microseconds.
local function offer_time(w)
  return math.floor(tonumber(w.offer) / 1000)
end

-- offered_count: returns the number of offered slots. Only its first call in a script asks Redis.
local function offered_count(q)
  q.offered = q.offered or order.count_members(q, 'O')
  return q.offered
end

-- queue.unreserved_slots: returns the number of slots that are neither held nor offered. After a decrease of the
-- capacity, it can be negative.
function queue.unreserved_slots(q)
  return q.pool.capacity - q.pool.held - offered_count(q)
end

-- queue.waiter: returns the waiter of the device (the object in KEYS[6]), or nil if the device does not wait.
function queue.waiter(q, device)
  local text = order.queue_size(q) > 0 and redis.call('HGET', q.waiter, device)
  return text and cjson.decode(text) or nil
end

-- queue.waiters: returns the first `limit` waiters of a class, in the order of the queue. If limit is -1, it
-- returns all waiters of the class. The arguments after limit are the class (T, O or P) and, optionally, the id
-- of a batch.
function queue.waiters(q, limit, ...)
  local from, to = order.member_range(...)
  local all = redis.call('ZRANGEBYLEX', q.queue, from, to, 'LIMIT', 0, limit)
  for i, member in ipairs(all) do
    -- In a member "class|batch|order|device", the device begins at character 48.
    all[i] = queue.waiter(q, string.sub(member, 48))
  end
  return all
end

-- move_waiter: moves waiter w to another class in all keys. The class is T (notifiable), O (has an offer) or P
-- (poller). If class is nil, w leaves the queue. If w had an offer and class is not O, the offer ends, and w is
-- no longer owed a slot (KEYS[10]). Returns nil.
local function move_waiter(q, w, class)
  local b = order.load_batch(q, w.batch)
  -- Change of the number of offered slots.
  local delta = (class == 'O' and 1 or 0) - (w.class == 'O' and 1 or 0)
  q.offered = offered_count(q) + delta
  q.size = order.queue_size(q) + (class and 1 or 0) - (w.class and 1 or 0)
  if w.offer and class ~= 'O' then
    -- keep_for_poller charged the time until w.ends to the budget for kept slots. The rest of this time is added to
    -- the budget again.
    if w.kept then
      q.state.kept = q.state.kept - math.max(w.ends - q.now, 0) * KEEP_DIVISOR / math.max(q.pool.capacity, 1)
    end
    w.offer = nil
    w.ends = nil
    w.told = nil
    w.kept = nil
    redis.call('ZREM', q.owed, w.device)
  end

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
    -- Time at which handle_timers must handle waiter w. If w has an offer that was sent, the offer lapses at this
    -- time. If w has an offer that was not sent, the script returns the offer once more, so that a replica sends
    -- it. If w has no offer, w leaves the queue at this time, unless its device reports before.
    local timer_at = w.offer and (w.told and w.ends or math.min(w.ends, q.now + RESEND_AFTER))
      or turn.timer(q.pace, w)
    redis.call('ZADD', q.queue, 0, member())
    redis.call('ZADD', q.timer, core.text(timer_at), w.device)
    redis.call('HSET', q.waiter, w.device, cjson.encode(w))
  end
  order.change_held(q, b, delta)
end

-- add_offer: stores the offer of waiter w (w.offer, w.ends) and appends it to q.offers. The caller of the script
-- notifies the devices of the offers in q.offers. handle_timers returns the offer again until an update of kind
-- 'sent' confirms it, or until it lapses.
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

-- handle_timers: handles at most MAX_PER_CALL expired timers of waiters:
--  A waiter without an offer leaves the queue, because its device did not report.
--  An offer that was not sent is returned to the caller again.
--  A waiter whose offer lapsed becomes a poller (class P).
-- If missed is true, it also returns unsent offers for parked reports that are at least RESEND_AFTER ms old,
-- because only another replica, which does not have the parked report, may have received such an offer.
local function handle_timers(q, missed)
  -- The loop reads the devices in the order of their timers, so the timers of the first expired_count devices
  -- have expired.
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

-- repair_queue: deletes the whole queue if the sizes of its keys show that Redis lost a key, or if the clock
-- was set back. The next reports of the devices fill the queue again. If only the members of the held slots
-- (class H) are wrong, repair_queue writes these members anew from core.holders.
local function repair_queue(q)
  local waiters = order.queue_size(q)
  local entries = redis.call('ZCARD', q.queue)
  local s = q.state
  -- Number of members of class H (held slots) in KEYS[5]. If KEYS[5] has one member for each waiter and each held
  -- slot, nothing is lost, so the number is q.pool.held. In any other case, a command counts the members.
  local recorded_held = entries == waiters + q.pool.held and q.pool.held or order.count_members(q, 'H')
  -- Each condition shows a lost key or a clock that was set back. A queue with waiters has a state (s.now is
  -- not 0), and a queue with a waiter of class T has a member in the contest.
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
  if recorded_held == q.pool.held then
    return
  end
  redis.call('ZREMRANGEBYLEX', q.queue, order.member_range('H'))
  for _, r in ipairs(core.holders(q.pool)) do
    redis.call('ZADD', q.queue, 0, 'H|' .. r.batch .. '|' .. r.lease)
  end
  order.delete_idle_batches(q)
end

-- queue.open: reads the queue of a known pool. It writes nothing. keys is KEYS of the script, pool the table
-- of core.pool. It returns q, which all functions of this file and of batch_order.lua receive:
--  queue, waiter, timer, batch, contest, owed  names of the keys KEYS[5] to KEYS[10]
--  pool     the table of core.pool
--  state    the state of the queue ("pool" in KEYS[8])
--  now      time of Redis in ms
--  batches  cache of the batches that were read: id -> batch (order.load_batch)
--  changed  batches that order.update_batches must process: id -> batch
--  fields   fields and values that order.write_batches must write to KEYS[8]
--  offers   offers that the caller must send (add_offer)
--  size     number of waiters; nil if not read yet
--  offered  number of offered slots; nil if not read yet
--  has_new_batch  true if a batch was read that has no record in KEYS[8]
--  pace      the argument pace of queue.start; nil before queue.start
--  max_owed  maximum number of pollers that count as owed a slot (turn.max_owed); nil before queue.start
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

-- open_for_change: does the work of queue.start. It raises an error if a key has an unexpected type or content.
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

-- queue.start: opens the queue of a known pool for changes. It repairs the queue, handles expired timers, and
-- returns q (queue.open). The arguments:
--  keys     KEYS of the script
--  pool     the table of core.pool
--  pace     table of times in ms, as in turn.lua, and:
--    offer    duration of an offer; if it is 0, slots are not offered to devices that can be notified
--  missed   true if unsent offers for parked reports are returned again (handle_timers)
function queue.start(keys, ...)
  local ok, q = pcall(open_for_change, keys, ...)
  -- A damaged key must not block the pool, so all keys of the queue are deleted.
  if not ok then
    redis.call('DEL', unpack(keys, 5, 10))
  end
  return ok and q or open_for_change(keys, ...)
end

-- next_report: returns two numbers. The first is the time (ms, not rounded) after which waiter w is asked to
-- report again. The second is the position of w in the queue. At position 1, w gets the next grant.
--  chance       number from 0 to 1; it makes the times of several devices different
--  batch_rank   rank of w among the waiters of its batch, from 1
--  urgent_rank  rank of w, from 0, if w is a poller of an urgent batch with precedence; else nil or false
local function next_report(q, w, chance, batch_rank, urgent_rank)
  -- Two kinds of pollers have a rank (0 or more): those of an urgent batch with precedence, and those that are
  -- owed a slot (KEYS[10]). For all other waiters, rank is nil or false.
  local rank = urgent_rank or redis.call('ZRANK', q.owed, w.device)
  local ahead = w.foreseen - q.state.grants
  -- A poller with a rank reports when the grant of this rank is expected, but not before `soon`. The time
  -- `soon` differs between pollers, so that they do not all report at the same moment.
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

-- queue.join: adds the device to the queue. If the device waits already, queue.join updates the waiter and ends
-- its offer. It returns the time (ms) after which the device must report again, and the position of the device
-- in the queue. If pace.period is 0, no device waits, so the device is not added.
--  want    the task for which the device needs a slot
--  reach   way to notify the device; a device with reach 0 polls
--  chance  number from 0 to 1 (next_report)
-- If reach is 0, the field foreseen never increases, even if the task changes.
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

-- queue.grant: records that the device got a slot for the task want. The device leaves the queue, the virtual
-- time of the batch advances, and KEYS[5] gets a member for the held slot.
function queue.grant(q, device, want)
  local w = queue.waiter(q, device)
  local b = order.load_batch(q, want.batch, want)
  order.set_closed(q, b, false)
  -- A used offer ends the series of unused offers (LAPSED_SERIES). A kept slot does not end the series,
  -- because no offer was sent.
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

-- queue.release: records in the queue that a slot was freed. r is the former holder that core.take returned.
function queue.release(q, r)
  local b = order.load_batch(q, r.batch)
  order.change_held(q, b, -redis.call('ZREM', q.queue, 'H|' .. r.batch .. '|' .. r.lease))
end

-- queue.update: applies u, an update of a waiter that a replica sent (fields: kind, device, offer, batch).
-- If u.offer is given and the device no longer has this offer, the kinds sent, away and left are ignored.
--  sent    the offer was sent to the device, so it is not returned again
--  away    the device becomes a poller: no offer is sent to it until it asks
--  left    the device leaves the queue
--  closed  no task of batch u.batch may start: at most MAX_CLOSED waiters of each class leave the queue. If
--          more wait, the batch is closed (batch_order.lua)
--  opened  tasks of batch u.batch may start again
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

-- keep_for_poller: chooses a poller for which a free slot is kept until the poller reports. Without kept slots,
-- other devices would take every slot before the poller reports. A poller is suitable if its report is due
-- within `window` ms and one of these conditions is true:
--  It is one of the first q.max_owed pollers that are owed a slot.
--  Its batch holds less than its share.
--  Its batch is urgent and has precedence.
-- The function chooses the suitable poller whose batch has the lowest ratio. Of equal ratios, it chooses the
-- poller whose report is due first. first_batch is the batch that is offered the slot if no poller is chosen.
-- Batches with a higher ratio than first_batch are excluded. The function charges the time until w.ends to the
-- budget for kept slots, sets the fields ends, told and kept of the chosen waiter w, and returns w or nil.
local function keep_for_poller(q, first_batch)
  local max_ratio = math.huge
  if first_batch then
    max_ratio = order.held_per_weight(q, order.load_batch(q, first_batch))
  end
  if q.state.kept - q.now > MAX_KEPT_AHEAD / q.pool.capacity then
    return
  end
  -- timer_now is the timer of a poller whose report is due now: turn.timer adds period + KEEP_WINDOW to the
  -- time at which the report is due.
  local timer_now = q.now + q.pace.period + KEEP_WINDOW
  local w = nil
  local least_ratio = nil
  -- Time (ms) in which about two slots become free, at most KEEP_WINDOW. A poller that reports later needs no
  -- kept slot.
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
    local is_owed = (redis.call('ZRANK', q.owed, device) or q.max_owed) < q.max_owed
    local is_suitable = poller.class == 'P'
      and not b.closed
      and ratio <= max_ratio
      and (ratio < 0 or order.is_below_share(q, b) or is_owed)
    -- The devices are sorted by the due times of their reports. So with equal ratios, `<` chooses the device
    -- whose report is due first.
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

-- queue.offer: reserves at most MAX_PER_CALL free slots for waiters. For each slot, keep_for_poller first chooses a
-- poller, and the slot is kept for this poller. If it chooses none, the slot is offered to a waiter of class T (can
-- be notified): the first one of the batch whose turn it is. If there is no such waiter, the slot stays free.
function queue.offer(q)
  for _ = 1, math.min(queue.unreserved_slots(q), order.queue_size(q), MAX_PER_CALL) do
    order.update_batches(q)
    local first_entry = nil
    local first_batch = nil
    if q.pace.offer > 0 then
      first_entry, first_batch = order.first_entry(q)
    end
    local w = keep_for_poller(q, first_batch) or first_entry and queue.waiters(q, 1, 'T', first_batch)[1]
    -- If the batch of the first entry has no waiter of class T, Redis lost a part of the queue.
    if first_entry and not w then
      order.delete_entry(q, first_entry)
    end
    if not w then
      break
    end
    -- Each offer gets an id of its own, so that an update for an old offer cannot change a newer one.
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

-- queue.close: offers the free slots and writes the state of the queue. It must be the last call of a script
-- that changes the queue. Returns the table reply as JSON, with these fields added:
--  offers    offers that the caller must send: device, batch, task, reach, id, left (ms until it lapses), age (ms)
--  The other fields are added only if state is true:
--  capacity  number of slots
--  held      number of held slots
--  reserved  number of offered slots
--  ready     number of waiters of class T (they can be notified and have no offer)
--  waiting   number of waiters of all classes
function queue.close(q, reply, state)
  local p = q.pool
  queue.offer(q)
  order.update_batches(q)
  -- order.delete_idle_batches is slow, so it runs only if most batch records belong to idle batches.
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
