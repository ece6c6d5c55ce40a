-- queue: decides which waiter gets the next free slot, and keeps the waiters, their offers and their
-- timers. batch_order.lua decides which batch is first. The keys of the queue are hints: a lost or
-- wrong key delays grants, but never causes a grant beyond the capacity (core.lua). A queue that lost
-- a key is emptied, and the next reports of the devices fill the queue again. scripts.go puts this
-- file behind core.lua and batch_order.lua, and in front of scripts that use it as `queue`.
--
-- KEYS[5]  queue  ZSET  all scores are 0, so the members are sorted as text
--     "class|batch|order|device"  one waiter:
--         class  T  the device can be notified of an offer, and has no offer
--                O  the device has an offer
--                P  the device is a poller and has no offer. A device that can be notified becomes a
--                   poller if its offer lapses or an update of kind 'away' arrives
--         batch  id of the batch, 16 digits
--         order  27 characters: 10 digits that decrease with the priority, '|', 16 digits of the task
--     "H|batch|lease"  one held slot
-- KEYS[6]  waiter  HASH  device -> JSON object (a waiter):
--     device, batch, order, class  as in the member of KEYS[5]
--     reach     way to notify the device: 0 none (a poller), 1 push, 2 parked report
--     foreseen  number of the grant that the waiter is expected to get (compare state.grants)
--     due       time (ms) at which the device was asked to report again
--     The following fields exist only while the waiter has an offer:
--     offer     id of the offer: the time of the offer in microseconds
--     ends      time (ms) at which the offer lapses
--     told      true if the offer needs no more sending: it was sent, or it is kept for a poller
--     kept      true if the offer keeps a slot for a poller; a poller is not notified
-- KEYS[7]  timer  ZSET  device -> time (ms):
--     class O     when the offer lapses, or when the unsent offer is returned again
--     class T, P  when the waiter is removed because it did not report
-- KEYS[8]  batch  HASH
--     batch  -> the record of a batch (batch_order.lua)
--     "pool" -> JSON object (the state of the queue):
--         grants  number of grants of this queue
--         kept    time (ms) up to which the budget for kept slots is spent (keep_for_poller)
--         vain    number of consecutive lapsed offers since the latest offer that its device used; not
--                 their total. Offers that are kept for pollers do not count
--         offer   id of the latest offer
--         now     time (ms) of the latest change of the queue
--         time, weights, percent, lane, urgent  as in batch_order.lua
-- KEYS[9]  contest  ZSET  as in batch_order.lua
-- KEYS[10] owed  ZSET  device -> foreseen; the pollers that are owed a slot
--
-- Order. The next slot goes to a waiter of the first batch (batch_order.lua). Inside a batch, the
-- slot goes to the highest priority, then to the oldest task.
--
-- Offers. A free slot is offered at once. It is kept for a poller that is expected soon, if the
-- poller is owed a slot or its batch is urgent or holds less than its share (keep_for_poller).
-- Otherwise it is offered to the first waiter of class T in the contest. A slot that is offered to
-- no waiter goes to the next device that asks. A poller is owed a slot if it asks when state.grants
-- is at least foreseen + capacity. A new waiter is foreseen after all earlier grants, so no poller
-- starves.
--
-- Invariants, before and after every script that changes the queue:
--   Every waiter has one field in KEYS[6], one member in KEYS[5] and one timer in KEYS[7].
--   Every held slot has one member with class H in KEYS[5].
-- If a key other than KEYS[10] is lost, repair_queue detects this from the sizes of the keys. It does
-- not compare their contents.

local queue = {}
-- Maximum number of offers, and of timers handled, in one call.
local MAX_PER_CALL = 100
-- Maximum number of timers that keep_for_poller examines.
local MAX_KEEP_CANDIDATES = 16
-- Maximum number of waiters of each class that one update of kind 'closed' removes.
local MAX_CLOSED = 200
-- Reach of a device whose report is parked at a replica.
local PARKED = 2
-- ms after which an unsent offer is returned again.
local RESEND_AFTER = 500
-- ms. keep_for_poller chooses only pollers that are due within KEEP_WINDOW. A waiter without an offer
-- is removed one report period plus KEEP_WINDOW after `due`.
local KEEP_WINDOW = 2000
-- Time (ms) after `due` at which a slot that is kept for a poller is released.
local KEEP_GRACE = 1000
-- At most 1 / KEEP_DIVISOR of all slot-time is spent on kept slots. At most capacity / KEEP_DIVISOR
-- pollers (at least 3) count as owed at a time.
local KEEP_DIVISOR = 20
-- keep_for_poller chooses no poller while state.kept is more than MAX_KEPT_AHEAD / capacity ms later
-- than the time.
local MAX_KEPT_AHEAD = 200000
-- Maximum number of report periods until the next report of a poller.
local MAX_POLLER_PERIODS = 3
-- Maximum number of report periods until the next report of a device that can be notified.
local MAX_NOTIFIED_PERIODS = 8
-- Number of consecutive lapsed offers after which offers become shorter.
local LAPSED_SERIES = 10
-- Factor by which offers become shorter.
local SHORTER_FACTOR = 6

-- offer_time: returns the time (ms) at which the offer to waiter w was made.
local function offer_time(w)
  return math.floor(tonumber(w.offer) / 1000)
end

-- offered_count: returns the number of offered slots. It reads the number from Redis once per call.
local function offered_count(q)
  q.offered = q.offered or order.count_members(q, 'O')
  return q.offered
end

-- queue.left: returns the number of slots that are neither held nor offered. The number is negative
-- if the capacity was lowered below the number of held slots.
function queue.left(q)
  return q.pool.capacity - q.pool.held - offered_count(q)
end

-- queue.waiter: returns the waiter of the device, or nil if the device does not wait.
function queue.waiter(q, device)
  local text = order.queue_size(q) > 0 and redis.call('HGET', q.waiter, device)
  return text and cjson.decode(text) or nil
end

-- queue.waiters: returns the first `limit` waiters of a class, in the order of KEYS[5]. If limit is
-- -1, it returns all of them. The optional argument batch limits the range
-- (order.member_range).
function queue.waiters(q, limit, ...)
  local from, to = order.member_range(...)
  local all = redis.call('ZRANGEBYLEX', q.queue, from, to, 'LIMIT', 0, limit)
  for i, member in ipairs(all) do
    -- The device begins after class, batch and order (1 + 16 + 27 characters) and three separators.
    all[i] = queue.waiter(q, string.sub(member, 48))
  end
  return all
end

-- move_waiter: moves waiter w to another class of the queue, and writes the waiter and its timer.
-- If class is nil, the waiter is removed from the queue. If class is not O, the offer to the waiter
-- ends, and a waiter that had an offer is owed no slot until it asks again. Returns nothing.
local function move_waiter(q, w, class)
  local b = order.load_batch(q, w.batch)
  -- 1 if the waiter gets an offer, -1 if the waiter loses its offer, else 0.
  local delta = (class == 'O' and 1 or 0) - (w.class == 'O' and 1 or 0)
  q.offered = offered_count(q) + delta
  q.size = order.queue_size(q) + (class and 1 or 0) - (w.class and 1 or 0)
  if w.offer and class ~= 'O' then
    -- The time for which the slot was not kept goes back into the budget.
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
    -- The time of the timer: see KEYS[7].
    local timer_at = w.offer and (w.told and w.ends or math.min(w.ends, q.now + RESEND_AFTER))
      or w.due + q.pace.period + KEEP_WINDOW
    redis.call('ZADD', q.queue, 0, member())
    redis.call('ZADD', q.timer, core.text(timer_at), w.device)
    redis.call('HSET', q.waiter, w.device, cjson.encode(w))
  end
  order.change_held(q, b, delta)
end

-- add_offer: writes waiter w with its offer (w.offer, w.ends), and appends the offer to q.offers, the
-- offers that the caller has to send. handle_timers returns the offer again until an update of kind
-- 'sent' arrives.
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

-- handle_timers: handles at most MAX_PER_CALL timers that have expired. A waiter without an offer is
-- removed. An unsent offer is returned again. A waiter whose offer lapsed becomes a poller: no offer
-- is sent to it until it asks, but keep_for_poller may keep a slot for it. If missed is true, an
-- unsent offer for a parked report is also returned before its timer expires, if the offer is at
-- least RESEND_AFTER ms old: the caller may be the replica that has the report.
local function handle_timers(q, missed)
  -- The first expired_count devices in the order of time have an expired timer.
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

-- repair_queue: compares the sizes of the keys. If a key of the queue was lost or the clock was set
-- back, all keys of the queue are deleted. If only the members of the held slots are wrong,
-- repair_queue writes them again from core.holders.
local function repair_queue(q)
  local waiters = order.queue_size(q)
  local entries = redis.call('ZCARD', q.queue)
  local s = q.state
  -- recorded_held is the number of held slots according to the queue.
  local recorded_held = entries == waiters + q.pool.held and q.pool.held or order.count_members(q, 'H')
  -- Every waiter has one timer and one member in KEYS[5]. Every queue with waiters has a state, and
  -- a queue with a waiter of class T has an entry in the contest.
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
  -- The queue knows all held slots.
  if recorded_held == q.pool.held then
    return
  end
  redis.call('ZREMRANGEBYLEX', q.queue, order.member_range('H'))
  for _, r in ipairs(core.holders(q.pool)) do
    redis.call('ZADD', q.queue, 0, 'H|' .. r.batch .. '|' .. r.lease)
  end
  order.delete_idle_batches(q)
end

-- queue.open: reads the state of the queue of a known pool. It writes nothing. Returns q, which all
-- functions of this file and of batch_order.lua receive:
--   queue, waiter, timer, batch, contest, owed  names of the keys
--   pool     the table that core.pool returns
--   state    the state of the queue ("pool" in KEYS[8])
--   now      time of Redis in ms
--   batches  cache of the batches that were read: name -> batch (order.load_batch)
--   changed  batches that order.update_batches must process: name -> batch
--   fields   fields and values that order.write_batches must write to KEYS[8]
--   offers   offers for the reply (add_offer)
--   size     number of waiters, or nil if not read yet
--   offered  number of offered slots, or nil if not read yet
--   has_new_batch  true if a batch was read that has no record in KEYS[8]
--   The following fields exist only after queue.start:
--   pace      times in ms (queue.start)
--   max_owed  maximum number of pollers that count as owed at a time
function queue.open(keys, pool)
  local state = redis.call('HGET', keys[8], 'pool')
    or '{"grants":0,"time":0,"weights":0,"kept":0,"vain":0,"offer":"0","now":0,"percent":0,"lane":0,"urgent":0}'
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

-- open_for_change: does the work of queue.start. It fails if a key has an unexpected type or content.
local function open_for_change(keys, pool, pace, missed)
  local q = queue.open(keys, pool)
  q.pace = pace
  q.max_owed = math.max(math.floor(pool.capacity / KEEP_DIVISOR), 3)
  q.state.kept = math.max(q.state.kept, q.now)
  repair_queue(q)
  if order.queue_size(q) > 0 then
    handle_timers(q, missed)
  end
  return q
end

-- queue.start: opens the queue of a known pool for a script that changes the queue. It repairs the
-- queue and handles expired timers. Returns q (queue.open). The arguments after keys are pool, pace
-- and missed (handle_timers). The fields of pace, in ms:
--   hold     mean time for which a slot is held; 0 if unknown
--   soonest  minimum time until the next report of a refused device
--   period   time between two reports of a device; if it is 0, no device waits
--   offer    duration of an offer; if it is 0, no slot is offered to devices that can be notified
function queue.start(keys, ...)
  local ok, q = pcall(open_for_change, keys, ...)
  -- The content of the keys is not a queue, so delete all keys of the queue and begin again.
  if not ok then
    redis.call('DEL', unpack(keys, 5, 10))
  end
  return ok and q or open_for_change(keys, ...)
end

-- next_report: returns the time (ms, not rounded) until waiter w is to ask again, and its position.
-- chance (0 to 1) spreads the times of several devices. urgent_rank is the rank (from 0) of a poller
-- of an urgent batch that has precedence; it is nil or false for every other waiter.
local function next_report(q, w, chance, urgent_rank)
  -- The rank among the pollers that are owed a slot; false or nil if the waiter is not owed a slot.
  local rank = urgent_rank or redis.call('ZRANK', q.owed, w.device)
  local ahead = w.foreseen - q.state.grants
  local period = q.pace.period
  -- The mean time (ms) between two grants.
  local interval = q.pace.hold / q.pool.capacity
  local spread = 0.9 + chance / 10
  if q.pool.capacity == 0 then
    return period, math.max(ahead, 1)
  end
  -- The first pollers ask again at once, the later ones when their grants are expected. `soon` is
  -- the minimum time; it differs by chance and rank, so the pollers do not ask at the same moment.
  if rank then
    local soon = math.min(q.pace.soonest * (1 + chance / 4 + rank / q.max_owed / 4), KEEP_WINDOW)
    return math.max(math.min(rank * interval, period) * spread, soon), rank + 1
  end
  -- The waiter asks when its foreseen grant is expected. If that grant has passed, it asks when it
  -- will be owed a slot.
  local wait = (ahead > 0 and ahead or ahead + q.pool.capacity) * interval
  local max_wait = MAX_POLLER_PERIODS * period
  -- A device that can be notified needs no exact time.
  if w.reach > 0 then
    wait = wait + period
    max_wait = MAX_NOTIFIED_PERIODS * period
  end
  return math.min(wait, max_wait) * spread, math.max(ahead, 1)
end

-- queue.join: adds the device to the queue with the task of want, or updates its waiter. The
-- earlier offer to the device ends. A poller keeps an earlier foreseen grant, even if its task
-- changes. A poller is owed a slot if state.grants is at least foreseen + capacity. If pace.period
-- is 0, the device is not added. Returns the time (ms) until the device is to ask again, and its
-- position.
function queue.join(q, device, want, reach, chance)
  local w = queue.waiter(q, device)
  local foreseen = w and w.foreseen
  if w and w.batch .. w.order ~= want.batch .. want.order then
    w = move_waiter(q, w, nil)
  end
  local b = order.load_batch(q, want.batch, want)
  local place = order.position(q, device, want)
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
  local after, position = next_report(q, w, chance, urgent_rank)
  w.due = q.now + math.max(math.floor(after), q.pace.soonest)
  if q.pace.period > 0 then
    move_waiter(q, w, reach > 0 and 'T' or 'P')
  end
  return w.due - q.now, position
end

-- queue.grant: records that the device was given a slot for want. It removes the waiter of the
-- device, advances the virtual time of the batch and adds the held slot to KEYS[5].
function queue.grant(q, device, want)
  local w = queue.waiter(q, device)
  local b = order.load_batch(q, want.batch, want)
  -- The device used its offer, so the series of lapsed offers ends.
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

-- queue.release: removes the held slot of r, the holder that core.take returned.
function queue.release(q, r)
  local b = order.load_batch(q, r.batch)
  order.change_held(q, b, -redis.call('ZREM', q.queue, 'H|' .. r.batch .. '|' .. r.lease))
end

-- queue.update: applies the update u, with the fields kind, device, offer and batch. If u.offer is
-- given, the update is ignored unless it is the current offer to the device. The kinds:
--   sent    the offer was sent to the device; handle_timers does not return it again
--   away    the device stays in the queue as a poller: no offer is sent to it until it asks, but
--           keep_for_poller may keep a slot for it
--   left    the device leaves the queue
--   closed  all devices that wait with tasks of u.batch leave the queue, at most MAX_CLOSED per
--           class
function queue.update(q, u)
  local w = queue.waiter(q, u.device)
  for _, class in ipairs(u.kind == 'closed' and { 'T', 'O', 'P' } or {}) do
    for _, batch_waiter in ipairs(queue.waiters(q, MAX_CLOSED, class, u.batch)) do
      move_waiter(q, batch_waiter, nil)
    end
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

-- keep_for_poller: chooses a poller that is expected before the next slots fall free. The poller is
-- one of the first q.max_owed that are owed a slot, or its batch lacks slots, or its batch is urgent
-- and has precedence. Among these pollers, it chooses the batch with the lowest held / weight, then
-- the poller that is due first. The batch must not have a higher held / weight than first_batch, the
-- name of the first batch in the contest. If first_batch is nil, any held / weight is allowed,
-- because no batch in the contest can get an offer. It charges the budget for kept slots and sets
-- w.ends, w.told and w.kept. Returns the waiter, or nil if no poller is suitable.
local function keep_for_poller(q, first_batch)
  local max_ratio = math.huge
  if first_batch then
    max_ratio = order.held_per_weight(q, order.load_batch(q, first_batch))
  end
  -- The budget for kept slots is spent.
  if q.state.kept - q.now > MAX_KEPT_AHEAD / q.pool.capacity then
    return
  end
  -- The timer of a poller that is due now. A timer is period + KEEP_WINDOW later than `due`
  -- (move_waiter).
  local timer_now = q.now + q.pace.period + KEEP_WINDOW
  local w = nil
  local least_ratio = nil
  -- Slots are kept for pollers that are due within this time (ms): until about two slots fall free.
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
    -- A poller that is not in KEYS[10] is not owed a slot.
    local is_owed = (redis.call('ZRANK', q.owed, device) or q.max_owed) < q.max_owed
    local is_suitable = poller.class == 'P'
      and ratio <= max_ratio
      and (ratio < 0 or order.is_below_share(q, b) or is_owed)
    -- The devices are sorted by due, so the first of several equal pollers is chosen.
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

-- queue.offer: offers free slots, at most MAX_PER_CALL, to waiters. Each slot is kept for a poller
-- (keep_for_poller), or offered to the first waiter of the first batch in the contest. Without such a
-- waiter, the slot stays free for the next device that asks.
function queue.offer(q)
  for _ = 1, math.min(queue.left(q), order.queue_size(q), MAX_PER_CALL) do
    order.update_batches(q)
    local first_entry = nil
    local first_batch = nil
    if q.pace.offer > 0 then
      first_entry, first_batch = order.first_entry(q)
    end
    local w = keep_for_poller(q, first_batch) or first_entry and queue.waiters(q, 1, 'T', first_batch)[1]
    -- The contest has an entry without a waiter: a key of the queue was lost.
    if first_entry and not w then
      order.delete_entry(q, first_entry)
    end
    if not w then
      break
    end
    -- The id of the offer is the time in microseconds. It always increases.
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

-- queue.close: offers the free slots and writes the queue. Returns reply as JSON, with these fields
-- added:
--   offers    list of offers to send, each an object: device, batch, task, reach, id, left (ms until
--             the offer lapses), age (ms since the offer was made)
--   The following fields are added only if state is true:
--   capacity  number of slots
--   held      number of held slots
--   reserved  number of offered slots
--   ready     number of waiters of class T
--   waiting   number of waiters of all classes
function queue.close(q, reply, state)
  local p = q.pool
  queue.offer(q)
  order.update_batches(q)
  -- order.delete_idle_batches reads all batches, so it runs only if KEYS[8] has about twice as many
  -- batches as can have waiters or held slots.
  if q.has_new_batch
    and redis.call('HLEN', q.batch) > 2 * (p.held + order.queue_size(q)) + MAX_PER_CALL
  then
    order.delete_idle_batches(q)
  end
  q.state.now = q.now
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
