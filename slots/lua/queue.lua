-- queue: decides which waiter gets the next free slot. The keys of the queue are hints: a lost or
-- wrong key delays grants, but never causes a grant beyond the capacity (core.lua). A queue that lost
-- a key is emptied, and the next reports of the devices fill the queue again. scripts.go puts this
-- file behind core.lua and in front of scripts that use it as `queue`.
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
--     reach     way to notify the device: 0 none (a poller), 1 push, 2 parked request
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
--     batch  -> "weight|virtual time|lane"; lane is U for an urgent batch, else empty
--     "pool" -> JSON object (the state of the queue):
--         grants   number of grants of this queue
--         time     highest virtual time at which a batch was granted a slot
--         weights  sum of the weights of all batches that have waiters
--         kept     time (ms) up to which the budget for kept slots is spent (keep)
--         vain     number of consecutive lapsed offers; offers that are kept for pollers do not count
--         offer    id of the latest offer
--         now      time (ms) of the latest change of the queue
--         percent  percentage of the capacity for which urgent batches have precedence
--         lane     number of slots that urgent batches hold or are offered
--         urgent   number of waiters in urgent batches
-- KEYS[9]  contest  ZSET  all batches that have a waiter of class T:
--     "virtual time|batch"   -> (held + offered slots) / weight
--     "virtual time|batchU"  -> the same number minus FIRST; only for urgent batches
-- KEYS[10] owed  ZSET  device -> foreseen; the pollers that are owed a slot
--
-- Order. The next slot goes to the batch with the lowest held / weight; offered slots count as held.
-- If two batches are equal, the slot goes to the batch with the lower virtual time, which grows by
-- UNIT / weight with each grant, then to the older batch. Inside a batch, the slot goes to the highest
-- priority, then to the oldest task. Urgent batches precede all other batches while they hold together
-- less than `percent` percent of the capacity, rounded up. Above that share, they compete like all
-- other batches.
--
-- Offers. A free slot is offered at once. It is kept for a poller that is expected soon, if the poller
-- is owed a slot or its batch is urgent or holds less than its share (keep). Otherwise it is offered
-- to the first waiter of class T in the contest. A slot that is offered to no waiter goes to the next
-- device that asks. A poller is owed a slot if it asks when state.grants is at least foreseen +
-- capacity. A new waiter is foreseen after all earlier grants, so no poller starves.

local queue = {}
-- Virtual time of one grant in a batch of weight 1.
local UNIT = 1000000
-- Subtracted from held / weight of urgent batches; larger than any held / weight.
local FIRST = 16384
-- Maximum number of offers, and of timers handled, in one call.
local MOST = 100
-- Maximum number of timers that `keep` examines.
local FEW = 16
-- Maximum number of waiters of each class that one update of kind 'closed' removes.
local CLOSED = 200
-- Reach of a device whose request is parked at a replica.
local PARKED = 2
-- ms after which an unsent offer is returned again.
local RESEND = 500
-- ms. keep chooses only pollers that are due within SOON. A waiter without an offer is removed one
-- report period plus SOON after `due`.
local SOON = 2000
-- Time (ms) after `due` at which a slot that is kept for a poller is released.
local LATE = 1000
-- At most 1 / SHARE of all slot-time is spent on kept slots. At most capacity / SHARE pollers (at
-- least 3) count as owed at a time.
local SHARE = 20
-- keep chooses no poller while state.kept is more than AHEAD / capacity ms later than the time.
local AHEAD = 200000
-- Maximum number of report periods until the next report of a poller.
local ALONE = 3
-- Maximum number of report periods until the next report of a device that can be notified.
local TOLD = 8
-- Number of consecutive lapsed offers after which offers become shorter.
local VAIN = 10
-- Factor by which offers become shorter.
local HURRY = 6

-- range: returns the lower and the upper bound, for ZRANGEBYLEX, of the members of KEYS[5] with
-- this class. If batch is given, only members of the batch are in the range. If order is given,
-- only members before order are in the range.
local function range(class, batch, order)
  local from = class .. '|' .. (batch and batch .. '|' or '')
  return '[' .. from, '(' .. from .. (order or '\255')
end

-- size: returns the number of waiters. It reads the number from Redis once per call.
local function size(q)
  q.size = q.size or redis.call('HLEN', q.waiter)
  return q.size
end

-- count: returns the number of members of KEYS[5] with this class. The optional arguments batch and
-- order limit the range (range).
local function count(q, class, ...)
  -- Without waiters, or without offers, no read is needed.
  if class ~= 'H' and size(q) == 0 or class == 'O' and q.offered == 0 then
    return 0
  end
  return redis.call('ZLEXCOUNT', q.queue, range(class, ...))
end

-- held: returns the number of slots that the batch holds or is offered.
local function held(q, batch)
  return count(q, 'H', batch) + count(q, 'O', batch)
end

-- waiting: returns the number of waiters of all classes. The optional arguments batch and order
-- limit the range (range).
local function waiting(q, ...)
  return count(q, 'T', ...) + count(q, 'O', ...) + count(q, 'P', ...)
end

-- made: returns the time (ms) at which the offer to waiter w was made.
local function made(w)
  return math.floor(tonumber(w.offer) / 1000)
end

-- exact: returns the number n as text that Redis reads back without loss.
local function exact(n)
  return string.format('%.17g', n)
end

-- entry: returns the member of batch b in the contest, "virtual time|batch", 37 characters.
local function entry(b)
  return string.format('%020.0f|', b.time) .. b.name
end

-- offered: returns the number of offered slots. It reads the number from Redis once per call.
local function offered(q)
  q.offered = q.offered or count(q, 'O')
  return q.offered
end

-- queue.left: returns the number of slots that are neither held nor offered. The number is negative
-- if the capacity was lowered below the number of held slots.
function queue.left(q)
  return q.pool.capacity - q.pool.held - offered(q)
end

-- queue.room: returns the number of slots for which urgent batches still have precedence. The
-- number is 0 or negative if urgent batches hold their whole share.
function queue.room(q)
  return math.ceil(q.pool.capacity * q.state.percent / 100) - q.state.lane
end

-- share: returns held / weight of batch b, the number by which batches are ordered. The number is
-- negative if b is urgent and has precedence.
local function share(q, b)
  return b.held / b.weight - (b.lane == 'U' and queue.room(q) > 0 and FIRST or 0)
end

-- lane: returns what batch b adds to state.lane and to state.urgent: the number of its held and
-- offered slots, and the number of its waiters. Both are 0 if b is not urgent.
local function lane(q, b)
  if b.lane == 'U' then
    return b.held, waiting(q, b.name)
  else
    return 0, 0
  end
end

-- queue.waiter: returns the waiter of the device, or nil if the device does not wait.
function queue.waiter(q, device)
  local text = size(q) > 0 and redis.call('HGET', q.waiter, device)
  return text and cjson.decode(text) or nil
end

-- queue.waiters: returns the first `limit` waiters of a class, in the order of KEYS[5]. If limit is
-- -1, it returns all of them. The optional argument batch limits the range (range).
function queue.waiters(q, limit, ...)
  local from, to = range(...)
  local all = redis.call('ZRANGEBYLEX', q.queue, from, to, 'LIMIT', 0, limit)
  for i, member in ipairs(all) do
    -- The device begins after class, batch and order (1 + 16 + 27 characters) and three separators.
    all[i] = queue.waiter(q, string.sub(member, 48))
  end
  return all
end

-- look: sets b.told (b has a waiter of class T) and b.waits (b has a waiter of any class). If b has
-- no waiter, its virtual time is raised to state.time, so a batch gains no credit while no device
-- waits with its tasks.
local function look(q, b)
  b.told = count(q, 'T', b.name) > 0
  b.waits = b.told or count(q, 'O', b.name) > 0 or count(q, 'P', b.name) > 0
  if not b.waits then
    b.time = math.max(b.time, q.state.time)
  end
end

-- batch: returns the batch with this name, from the cache of the call or from KEYS[8]. If want is
-- given, its weight and lane replace the stored ones, and the lane of an urgent want replaces
-- state.percent. The fields of a batch:
--   name, weight, time, lane  as in KEYS[8]
--   held    number of held and offered slots
--   told    true if the batch has a waiter of class T
--   waits   true if the batch has a waiter of any class
--   share   what the batch adds to state.weights: its weight, or 0 if the batch has no waiter
--   has     what the batch adds to state.lane
--   queued  what the batch adds to state.urgent
--   listed  its member in the contest, with U if the batch is urgent; false if it has none
local function batch(q, name, want)
  local b = q.batches[name]
  if not b then
    local text = redis.call('HGET', q.batch, name)
    -- A batch without an entry has weight 1 and virtual time 0.
    local weight, time, of = string.match(text or '1|0|', '(%d+)|(%d+)|(U?)')
    q.grew = q.grew or not text
    b = { name = name, weight = tonumber(weight), time = tonumber(time), lane = of, held = held(q, name) }
    b.listed = entry(b) .. of
    b.has, b.queued = lane(q, b)
    look(q, b)
    b.share = b.waits and b.weight or 0
    b.listed = b.told and b.listed
    q.batches[name] = b
  end
  if want then
    b.weight = want.weight
    b.lane = want.lane and 'U' or ''
    q.state.percent = want.lane or q.state.percent
  end
  return b
end

-- save: adds `more` to the number of slots that batch b holds, and marks b as changed. flush
-- updates the sums and the contest later.
local function save(q, b, more)
  b.held = b.held + more
  q.changed[b.name] = b
end

-- flush: updates, for each changed batch, the sums in the state and the entries in the contest. It
-- adds the batch to q.fields, which `write` writes to Redis.
local function flush(q)
  for name, b in pairs(q.changed) do
    look(q, b)
    local s = q.state
    local at = entry(b)
    local weight = b.waits and b.weight or 0
    local has, queued = lane(q, b)
    s.weights = s.weights + weight - b.share
    s.lane = s.lane + has - b.has
    s.urgent = s.urgent + queued - b.queued
    if b.listed and b.listed ~= (b.told and at .. b.lane) then
      -- The first 37 characters are the member without the U of an urgent batch.
      redis.call('ZREM', q.contest, b.listed, string.sub(b.listed, 1, 37))
    end
    b.share = weight
    b.has = has
    b.queued = queued
    b.listed = b.told and at .. b.lane
    q.changed[name] = nil
    if b.told then
      -- If the batch is not urgent, both members are the same, and the second score is stored.
      redis.call('ZADD', q.contest, exact(b.held / b.weight - FIRST), b.listed, exact(b.held / b.weight), at)
    end
    q.fields[#q.fields + 1], q.fields[#q.fields + 2] =
      name,
      core.text(b.weight) .. '|' .. core.text(b.time) .. '|' .. b.lane
  end
end

-- write: writes q.fields to KEYS[8] and clears q.fields.
local function write(q)
  if #q.fields > 0 then
    redis.call('HSET', q.batch, unpack(q.fields))
  end
  q.fields = {}
end

-- forget: deletes the batches that have neither waiters nor held slots, and recomputes state.lane
-- and state.urgent from the batches that are left.
local function forget(q)
  write(q)
  q.state.lane = 0
  q.state.urgent = 0
  for _, name in ipairs(redis.call('HKEYS', q.batch)) do
    local b = name ~= 'pool' and batch(q, name)
    -- After this, flush adds the whole contribution of the batch to the sums.
    if b then
      b.has = 0
      b.queued = 0
      q.changed[name] = b
    end
    flush(q)
    write(q)
    if b and waiting(q, name) + b.held == 0 then
      redis.call('HDEL', q.batch, name)
    end
  end
end

-- move: moves waiter w to another class of the queue, and writes the waiter and its timer. If class
-- is nil, the waiter is removed from the queue. If class is not O, the offer to the waiter ends,
-- and a waiter that had an offer is owed no slot until it asks again. Returns nothing.
local function move(q, w, class)
  local b = batch(q, w.batch)
  -- 1 if the waiter gets an offer, -1 if the waiter loses its offer, else 0.
  local more = (class == 'O' and 1 or 0) - (w.class == 'O' and 1 or 0)
  q.offered = offered(q) + more
  q.size = size(q) + (class and 1 or 0) - (w.class and 1 or 0)
  if w.offer and class ~= 'O' then
    -- The time for which the slot was not kept goes back into the budget.
    if w.kept then
      q.state.kept = q.state.kept - math.max(w.ends - q.now, 0) * SHARE / math.max(q.pool.capacity, 1)
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
    local at = w.offer and (w.told and w.ends or math.min(w.ends, q.now + RESEND))
      or w.due + q.pace.period + SOON
    redis.call('ZADD', q.queue, 0, member())
    redis.call('ZADD', q.timer, core.text(at), w.device)
    redis.call('HSET', q.waiter, w.device, cjson.encode(w))
  end
  save(q, b, more)
end

-- tell: writes waiter w with its offer (w.offer, w.ends), and appends the offer to q.made, the
-- offers that the caller has to send. lapse returns the offer again until an update of kind 'sent'
-- arrives.
local function tell(q, w)
  move(q, w, 'O')
  q.made[#q.made + 1] = {
    device = w.device,
    batch = w.batch,
    task = string.sub(w.order, 12),
    reach = w.reach,
    id = w.offer,
    left = w.ends - q.now,
    age = q.now - made(w),
  }
end

-- lapse: handles at most MOST timers that have expired. A waiter without an offer is removed. An
-- unsent offer is returned again. A waiter whose offer lapsed becomes a poller. If missed is true,
-- an unsent offer to a parked device is also returned before its timer expires, if the offer is at
-- least RESEND ms old: the caller may be the replica that has the request of the device.
local function lapse(q, missed)
  -- The first `over` devices in the order of time have an expired timer.
  local over = redis.call('ZCOUNT', q.timer, '-inf', core.text(q.now))
  for i, device in ipairs(redis.call(
    'ZRANGEBYSCORE', q.timer, '-inf', core.text(q.now + (missed and RESEND or 0)), 'LIMIT', 0, MOST
  )) do
    local w = queue.waiter(q, device)
    if i <= over or w.offer and not w.told and w.reach == PARKED and made(w) <= q.now - RESEND then
      if w.offer and w.ends <= q.now and not w.kept then
        q.state.vain = q.state.vain + 1
      end
      if not w.offer then
        move(q, w, nil)
      elseif w.ends > q.now then
        tell(q, w)
      else
        move(q, w, 'P')
      end
    end
  end
end

-- repair: compares the sizes of the keys. If a key of the queue was lost or the clock was set back,
-- all keys of the queue are deleted. If only the members of the held slots are wrong, repair writes
-- them again from core.holders.
local function repair(q)
  local waiters = size(q)
  local entries = redis.call('ZCARD', q.queue)
  local s = q.state
  -- h is the number of held slots according to the queue.
  local h = entries == waiters + q.pool.held and q.pool.held or count(q, 'H')
  -- Every waiter has one timer and one member in KEYS[5]. Every queue with waiters has a state, and
  -- a queue with a waiter of class T has an entry in the contest.
  if redis.call('ZCARD', q.timer) ~= waiters
    or entries - h ~= waiters
    or s.now > q.now + 1000
    or waiters > 0 and (s.now == 0 or count(q, 'T') > 0 and redis.call('ZCARD', q.contest) == 0)
  then
    redis.call('DEL', q.queue, q.waiter, q.timer, q.batch, q.contest, q.owed)
    h = 0
    q.size = 0
    q.offered = 0
    s.weights = 0
    s.lane = 0
    s.urgent = 0
    s.kept = q.now
    s.offer = '0'
  end
  -- The queue knows all held slots.
  if h == q.pool.held then
    return
  end
  redis.call('ZREMRANGEBYLEX', q.queue, range('H'))
  for _, r in ipairs(core.holders(q.pool)) do
    redis.call('ZADD', q.queue, 0, 'H|' .. r.batch .. '|' .. r.lease)
  end
  forget(q)
end

-- queue.open: reads the state of the queue of a known pool. It writes nothing. Returns q, which all
-- functions of this file receive:
--   queue, waiter, timer, batch, contest, owed  names of the keys
--   pool     the table that core.pool returns
--   state    the state of the queue ("pool" in KEYS[8])
--   now      time of Redis in ms
--   batches  cache of the batches that were read: name -> batch
--   changed  batches that flush must process: name -> batch
--   fields   fields and values that write must write to KEYS[8]
--   made     offers for the reply (tell)
--   size     number of waiters, or nil if not read yet
--   offered  number of offered slots, or nil if not read yet
--   grew     true if a batch was read that has no entry in KEYS[8]
--   pace     times in ms (queue.start)
--   keeps    maximum number of pollers that count as owed at a time
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
    made = {},
  }
end

-- begin: does the work of queue.start. It fails if a key has an unexpected type or content.
local function begin(keys, pool, pace, missed)
  local q = queue.open(keys, pool)
  q.pace = pace
  q.keeps = math.max(math.floor(pool.capacity / SHARE), 3)
  q.state.kept = math.max(q.state.kept, q.now)
  repair(q)
  if size(q) > 0 then
    lapse(q, missed)
  end
  return q
end

-- queue.start: opens the queue of a known pool for a script that changes the queue. It repairs the
-- queue and handles expired timers. Returns q (queue.open). The arguments after keys are pool, pace
-- and missed (lapse). The fields of pace, in ms:
--   hold     mean time for which a slot is held; 0 if unknown
--   soonest  minimum time until the next report of a refused device
--   period   time between two reports of a device; if it is 0, no device waits
--   offer    duration of an offer; if it is 0, no slot is offered to devices that can be notified
function queue.start(keys, ...)
  local ok, q = pcall(begin, keys, ...)
  -- The content of the keys is not a queue, so delete all keys of the queue and begin again.
  if not ok then
    redis.call('DEL', unpack(keys, 5, 10))
  end
  return ok and q or begin(keys, ...)
end

-- queue.best: returns the index of the want that is first in the order, and true if its batch is
-- urgent and has precedence. wants must not be empty.
function queue.best(q, wants)
  local best, least, text
  flush(q)
  for n, want in ipairs(wants) do
    local b = batch(q, want.batch, want)
    local held = share(q, b)
    local key = entry(b) .. want.order
    if not best or held < least or held == least and key < text then
      best = n
      least = held
      text = key
    end
  end
  return best, least < 0
end

-- queue.position: returns the expected number of grants of the pool until the want gets a slot; 1
-- is the next grant. The result is at least 1 and at most the number of waiters plus 1.
function queue.position(q, device, want)
  flush(q)
  local b = batch(q, want.batch, want)
  local room = math.max(queue.room(q), 0)
  -- The rank of the want in its batch, from 1.
  local rank = waiting(q, want.batch, want.order .. '|' .. device) + 1
  -- The sum of the weights of all batches that have waiters, including this batch.
  local weights = math.max(q.state.weights - b.share, 0) + b.weight
  -- The batch gets the next `lead` grants alone: the slots that its share lacks, or the slots for
  -- which an urgent batch has precedence.
  local lead = math.max(q.pool.capacity * b.weight / weights - b.held, b.lane == 'U' and room or 0)
  -- After those grants, the batch gets b.weight of every `weights` grants.
  if rank > lead then
    rank = math.floor(lead + (rank - lead) * weights / b.weight)
  end
  -- The waiters of urgent batches get their slots first.
  if b.lane == '' then
    rank = rank + math.min(room, q.state.urgent)
  end
  return math.max(math.min(rank, size(q) + 1), 1)
end

-- sleep: returns the time (ms, not rounded) until waiter w is to ask again, and its position.
-- chance (0 to 1) spreads the times of several devices. first is the rank (from 0) of a poller of
-- an urgent batch that has precedence; it is nil or false for every other waiter.
local function sleep(q, w, chance, first)
  -- The rank among the pollers that are owed a slot; false or nil if the waiter is not owed a slot.
  local rank = first or redis.call('ZRANK', q.owed, w.device)
  local ahead = w.foreseen - q.state.grants
  local period = q.pace.period
  -- The mean time (ms) between two grants.
  local interval = q.pace.hold / q.pool.capacity
  local early = 0.9 + chance / 10
  if q.pool.capacity == 0 then
    return period, math.max(ahead, 1)
  end
  -- The first pollers ask again at once, the later ones when their grants are expected. `soon` is
  -- the minimum time; it differs by chance and rank, so the pollers do not ask at the same moment.
  if rank then
    local soon = math.min(q.pace.soonest * (1 + chance / 4 + rank / q.keeps / 4), SOON)
    return math.max(math.min(rank * interval, period) * early, soon), rank + 1
  end
  -- The waiter asks when its foreseen grant is expected. If that grant has passed, it asks when it
  -- will be owed a slot.
  local wait = (ahead > 0 and ahead or ahead + q.pool.capacity) * interval
  local most = ALONE * period
  -- A device that can be notified needs no exact time.
  if w.reach > 0 then
    wait = wait + period
    most = TOLD * period
  end
  return math.min(wait, most) * early, math.max(ahead, 1)
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
    w = move(q, w, nil)
  end
  local b = batch(q, want.batch, want)
  local place = queue.position(q, device, want)
  w = w or { device = device, batch = want.batch, order = want.order }
  w.foreseen = math.min(reach == 0 and foreseen or math.huge, q.state.grants + place)
  w.reach = reach
  redis.call('ZREM', q.owed, device)
  if reach == 0 and q.state.grants >= w.foreseen + q.pool.capacity then
    redis.call('ZADD', q.owed, core.text(w.foreseen), device)
  end
  local after, position = sleep(
    q, w, chance, reach == 0 and share(q, b) < 0 and place <= queue.room(q) and place - 1
  )
  w.due = q.now + math.max(math.floor(after), q.pace.soonest)
  if q.pace.period > 0 then
    move(q, w, reach > 0 and 'T' or 'P')
  end
  return w.due - q.now, position
end

-- queue.grant: records that the device was given a slot for want. It removes the waiter of the
-- device, advances the virtual time of the batch and adds the held slot to KEYS[5].
function queue.grant(q, device, want)
  local w = queue.waiter(q, device)
  local b = batch(q, want.batch, want)
  -- The device used its offer, so the series of lapsed offers ends.
  if w and w.offer and not w.kept then
    q.state.vain = 0
  end
  if w then
    move(q, w, nil)
  end
  q.state.time = math.max(b.time, q.state.time)
  b.time = q.state.time + math.max(math.floor(UNIT / b.weight), 1)
  q.state.grants = q.state.grants + 1
  save(q, b, redis.call('ZADD', q.queue, 0, 'H|' .. b.name .. '|' .. want.lease))
end

-- queue.release: removes the held slot of r, the holder that core.take returned.
function queue.release(q, r)
  save(q, batch(q, r.batch), -redis.call('ZREM', q.queue, 'H|' .. r.batch .. '|' .. r.lease))
end

-- queue.update: applies the update u, with the fields kind, device, offer and batch. If u.offer is
-- given, the update is ignored unless it is the current offer to the device. The kinds:
--   sent    the offer was sent to the device; lapse does not return it again
--   away    the device stays in the queue as a poller, so it gets no offer until it asks
--   left    the device leaves the queue
--   closed  all devices that wait with tasks of u.batch leave the queue, at most CLOSED per class
function queue.update(q, u)
  local w = queue.waiter(q, u.device)
  for _, class in ipairs(u.kind == 'closed' and { 'T', 'O', 'P' } or {}) do
    for _, one in ipairs(queue.waiters(q, CLOSED, class, u.batch)) do
      move(q, one, nil)
    end
  end
  if not w or u.offer and u.offer ~= w.offer then
    return
  end
  if u.kind == 'left' then
    move(q, w, nil)
  elseif u.kind == 'away' then
    move(q, w, 'P')
  end
  if u.kind == 'sent' and w.offer then
    w.told = true
    move(q, w, 'O')
  end
end

-- lacks: reports whether batch b, with one slot more, would still hold less than its share of the
-- capacity.
local function lacks(q, b)
  return (b.held + 1) * (q.state.weights - b.share + b.weight) < q.pool.capacity * b.weight
end

-- keep: chooses a poller that is expected before the next slots fall free. The poller is one of the
-- first q.keeps that are owed a slot, or its batch lacks slots, or its batch is urgent and has
-- precedence. Among these pollers, keep chooses the batch with the lowest share, then the poller
-- that is due first. The batch must not have a higher share than `first`, the name of the first
-- batch in the contest. If first is nil or false, any share is allowed, because no batch in the
-- contest can get an offer. keep charges the budget for kept slots and sets w.ends, w.told and
-- w.kept. Returns the waiter, or nil if no poller is suitable.
local function keep(q, first)
  local most = first and share(q, batch(q, first)) or math.huge
  -- The budget for kept slots is spent.
  if q.state.kept - q.now > AHEAD / q.pool.capacity then
    return
  end
  -- The timer of a poller that is due now. A timer is period + SOON later than `due` (move).
  local due = q.now + q.pace.period + SOON
  local w = nil
  local least = nil
  -- Slots are kept for pollers that are due within this time (ms): until about two slots fall free.
  local window = math.max(math.min(2 * q.pace.hold / q.pool.capacity, SOON), SOON / 100)
  for _, device in ipairs(redis.call(
    'ZRANGEBYSCORE', q.timer, core.text(due - LATE), core.text(due + window), 'LIMIT', 0, FEW
  )) do
    local one = queue.waiter(q, device)
    local b = batch(q, one.batch)
    local held = share(q, b)
    -- A poller that is not in KEYS[10] is not owed a slot.
    local owed = (redis.call('ZRANK', q.owed, device) or q.keeps) < q.keeps
    local waits = one.class == 'P' and held <= most and (held < 0 or lacks(q, b) or owed)
    -- The devices are sorted by due, so the first of several equal pollers is chosen.
    if waits and (not w or held < least) then
      w = one
      least = held
    end
  end
  if w then
    w.ends = math.max(w.due + LATE, q.now + 1)
    w.told = true
    w.kept = true
  end
  q.state.kept = q.state.kept + (w and w.ends - q.now or 0) * SHARE / q.pool.capacity
  return w
end

-- queue.offer: offers free slots, at most MOST, to waiters. Each slot is kept for a poller (keep),
-- or offered to the first waiter of the first batch in the contest. Without such a waiter, the slot
-- stays free for the next device that asks.
function queue.offer(q)
  for _ = 1, math.min(queue.left(q), size(q), MOST) do
    flush(q)
    -- Entries of urgent batches with negative scores count only while urgent batches have
    -- precedence.
    local first = q.pace.offer > 0
      and redis.call('ZRANGEBYSCORE', q.contest, queue.room(q) > 0 and '-inf' or 0, '+inf', 'LIMIT', 0, 1)[1]
    -- The batch follows after the virtual time and '|', 21 characters.
    local name = first and string.sub(first, 22, 37)
    local w = keep(q, name) or first and queue.waiters(q, 1, 'T', name)[1]
    -- The contest has an entry without a waiter: a key of the queue was lost.
    if first and not w then
      redis.call('ZREM', q.contest, first)
    end
    if not w then
      break
    end
    -- The id of the offer is the time in microseconds. It always increases.
    q.state.offer = core.text(math.max(q.now * 1000, tonumber(q.state.offer) + 1))
    w.offer = q.state.offer
    w.ends = w.ends or q.now + math.floor(q.pace.offer / (q.state.vain < VAIN and 1 or HURRY))
    if w.kept then
      move(q, w, 'O')
    else
      tell(q, w)
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
  flush(q)
  -- forget reads all batches, so it runs only if KEYS[8] has about twice as many batches as can
  -- have waiters or held slots.
  if q.grew and redis.call('HLEN', q.batch) > 2 * (p.held + size(q)) + MOST then
    forget(q)
  end
  q.state.now = q.now
  reply.offers = q.made
  q.fields[#q.fields + 1], q.fields[#q.fields + 2] = 'pool', cjson.encode(q.state)
  write(q)
  if state then
    reply.capacity = p.capacity
    reply.held = p.held
    reply.reserved = offered(q)
    reply.ready = count(q, 'T')
    reply.waiting = size(q)
  end
  return cjson.encode(reply)
end

return queue
