-- order: decides which batch of a pool gets the next slot. queue.lua decides which device of the batch gets
-- it. scripts.go puts this file in front of the scripts that need it as the table `order`. The parameter q is
-- the table that queue.open returns.

-- Terms of this file:
--   waiter      a device that waits for a slot of the pool with one of its tasks (queue.lua)
--   want        a task for which a device asks for a slot
--   notifiable  a waiter that can be notified of an offer and has no offer now (class T in queue.lua)
--   ratio       (held + offered slots of a batch) / weight of the batch; the batch with the lowest ratio is first
--   contest     the list of all batches that have a notifiable waiter, sorted by ratio
--   closed      a closed batch may start no task, for example because it is paused. Its waiters get no offer,
--               and no slot is kept for them. The next want of the batch opens it

-- KEYS[5]  queue  ZSET  the waiters and the held slots (queue.lua); this file only counts its members
-- KEYS[6]  waiter HASH  the waiters (queue.lua); this file only counts its fields
-- KEYS[8]  batch  HASH
--     id of a batch -> "weight|virtual time|flags" (the record of the batch); flags contains U if the
--                      batch is urgent, and X if it is closed
--     "pool" -> JSON object (the state of the queue). queue.lua describes its other fields:
--         time     highest virtual time at which a batch was granted a slot
--         weights  sum of the weights of all batches that have waiters and are not closed
--         percent  percentage of the capacity for which urgent batches have precedence
--         lane     number of slots that all urgent batches together hold or are offered
--         urgent   number of waiters in urgent batches that are not closed
-- KEYS[9]  contest  ZSET  one or two members for each batch of the contest:
--     "virtual time|batch"   -> the ratio of the batch; CLOSED_RATIO if the batch is closed
--     "virtual time|batchU"  -> the same number minus PRECEDENCE_BONUS; only for an urgent batch

-- Order of the batches: the next slot goes to the batch with the lowest ratio. If two ratios are equal, the
-- slot goes to the batch with the lower virtual time. If these are equal, too, it goes to the older batch.
-- The virtual time of a batch grows by UNIT / weight with each grant, so batches with equal ratios take
-- turns. Urgent batches come before all other batches while all urgent batches together hold or are offered
-- less than `percent` percent of the capacity (rounded up to slots). Otherwise urgent batches compete like
-- all other batches.

-- Invariants:
--   The contest and the fields weights, lane and urgent of the state include all changes of held slots and
--   waiters that this call of the script has made, as soon as order.update_batches has run.
--   A want can bring a new weight or lane for its batch. The contest and the fields weights, lane and urgent
--   include the new values after the next change of held slots or waiters of the batch.
--   The virtual time of a batch never decreases. If a batch without waiters is read, its virtual time is
--   raised to state.time.
--   The record of a batch is deleted only if the batch has neither waiters nor held slots.
--   A lost record changes only the order of the batches. A batch without a record has weight 1 and virtual
--   time 0, until the next want of the batch brings its weight and lane.

local order = {}
-- Number by which a grant advances the virtual time of a batch with weight 1. The virtual time decides between
-- batches with equal ratios.
local UNIT = 1000000
-- Number that is subtracted from the ratio of an urgent batch that has precedence. It is larger than any ratio.
local PRECEDENCE_BONUS = 16384
-- Score of a closed batch in KEYS[9] (the contest). order.first_entry reads only lower scores.
local CLOSED_RATIO = 2 * PRECEDENCE_BONUS

-- order.member_range: returns the two bounds with which ZRANGEBYLEX selects the members of a class (T, O, P or
-- H; see queue.lua) in KEYS[5]. If batch is given, they select only members of this batch. If before is given
-- ("order" or "order|device"), they select only members that sort before this text.
function order.member_range(class, batch, before)
  local from = class .. '|' .. (batch and batch .. '|' or '')
  return '[' .. from, '(' .. from .. (before or '\255')
end

-- order.queue_size: returns the number of waiters (waiting devices). Only its first call in a script asks Redis.
function order.queue_size(q)
  q.size = q.size or redis.call('HLEN', q.waiter)
  return q.size
end

-- order.count_members: returns how many members of the class KEYS[5] (the queue) contains. The arguments after
-- q are the arguments of order.member_range.
function order.count_members(q, class, ...)
  -- The number is 0 if class is T, P or O (waiters) and no device waits. It is also 0 if class is O (waiters with
  -- an offer) and no slot is offered. Then no command is needed.
  if class ~= 'H' and order.queue_size(q) == 0 or class == 'O' and q.offered == 0 then
    return 0
  end
  return redis.call('ZLEXCOUNT', q.queue, order.member_range(class, ...))
end

-- count_waiters: returns the number of waiters of all classes. The arguments after q are the optional
-- arguments batch and before of order.member_range.
local function count_waiters(q, ...)
  return order.count_members(q, 'T', ...)
    + order.count_members(q, 'O', ...)
    + order.count_members(q, 'P', ...)
end

-- held_and_offered: returns the number of slots that tasks of the batch hold or are offered.
local function held_and_offered(q, batch)
  return order.count_members(q, 'H', batch) + order.count_members(q, 'O', batch)
end

-- exact_text: returns the number n as text with 17 digits. With fewer digits, two different ratios could get
-- the same score in Redis.
local function exact_text(n)
  return string.format('%.17g', n)
end

-- contest_member: returns the member of batch b in KEYS[9] (the contest): "virtual time|batch", 37 characters. The
-- time has 20 digits, so that members with equal scores are sorted by time.
local function contest_member(b)
  return string.format('%020.0f|', b.time) .. b.name
end

-- order.urgent_room: returns how many more slots urgent batches get before all other batches. The number is 0
-- or negative if urgent batches hold or are offered their whole share of the pool.
function order.urgent_room(q)
  return math.ceil(q.pool.capacity * q.state.percent / 100) - q.state.lane
end

-- order.held_per_weight: returns the ratio of batch b: its held and offered slots, divided by its weight. The
-- lowest ratio gets the next slot. The ratio of an urgent batch with precedence is negative.
-- order.update_batches must compute the ratios in the contest (KEYS[9]) by the same formula.
function order.held_per_weight(q, b)
  return b.held / b.weight - (b.lane_flag == 'U' and order.urgent_room(q) > 0 and PRECEDENCE_BONUS or 0)
end

-- order.is_below_share: reports whether batch b would still hold less than its share after one more grant. The
-- share is the capacity times the weight of b, divided by the sum of the weights of all batches with waiters.
-- The sum includes b.
function order.is_below_share(q, b)
  return (b.held + 1) * (q.state.weights - b.counted_weight + b.weight) < q.pool.capacity * b.weight
end

-- urgent_contribution: returns what batch b adds to the sums state.lane (held and offered slots) and
-- state.urgent (waiters) of all urgent batches.
local function urgent_contribution(q, b)
  if b.lane_flag == 'U' then
    return b.held, b.closed and 0 or count_waiters(q, b.name)
  else
    return 0, 0
  end
end

-- weight_in_sum: returns what batch b adds to state.weights, the sum of the weights of the batches with
-- waiters.
local function weight_in_sum(b)
  return b.has_waiters and not b.closed and b.weight or 0
end

-- read_waiters: sets b.has_waiters to whether batch b has waiters, and b.has_notifiable to whether one of these can
-- be notified and has no offer. A closed batch or a batch without waiters gets no slots. If its virtual time stayed
-- low meanwhile, the batch would be preferred later. So read_waiters raises it to state.time.
local function read_waiters(q, b)
  b.has_notifiable = order.count_members(q, 'T', b.name) > 0
  b.has_waiters = b.has_notifiable
    or order.count_members(q, 'O', b.name) > 0
    or order.count_members(q, 'P', b.name) > 0
  if not b.has_waiters or b.closed then
    b.time = math.max(b.time, q.state.time)
  end
end

-- order.load_batch: returns the batch with the id `name`, from the cache q.batches or from KEYS[8]. If want
-- (a task that needs a slot) is given, the batch gets the weight and lane of want, and state.percent becomes
-- want.lane unless that is nil. The fields of a batch:
--  name            id of the batch, 16 digits
--  weight, time    weight and virtual time of the batch
--  lane_flag       U if the batch is urgent, else empty
--  closed          true if the batch may start no task
--  held            number of held and offered slots
--  has_notifiable, has_waiters  see read_waiters
--  counted_weight  the part of this batch in the sum state.weights
--  urgent_slots    the part of this batch in the sum state.lane
--  urgent_waiters  the part of this batch in the sum state.urgent
--  member          the member of the batch in the contest, with U if the batch is urgent; false if it has none
function order.load_batch(q, name, want)
  local b = q.batches[name]
  if not b then
    local text = redis.call('HGET', q.batch, name)
    -- A batch without a record in KEYS[8] is new, or Redis lost the record.
    local weight, time, lane_flag, closed_flag = string.match(text or '1|0|', '(%d+)|(%d+)|(U?)(X?)')
    q.has_new_batch = q.has_new_batch or not text
    b = {
      name = name,
      weight = tonumber(weight),
      time = tonumber(time),
      lane_flag = lane_flag,
      closed = closed_flag == 'X',
      held = held_and_offered(q, name),
    }
    b.member = contest_member(b) .. lane_flag
    b.urgent_slots, b.urgent_waiters = urgent_contribution(q, b)
    read_waiters(q, b)
    b.counted_weight = weight_in_sum(b)
    b.member = b.has_notifiable and b.member
    q.batches[name] = b
  end
  if want then
    b.weight = want.weight
    b.lane_flag = want.lane and 'U' or ''
    q.state.percent = want.lane or q.state.percent
  end
  return b
end

-- order.set_closed: closes or opens batch b. A closed batch may start no task and gets no offers.
function order.set_closed(q, b, closed)
  if b.closed ~= closed then
    b.closed = closed
    q.changed[b.name] = b
  end
end

-- order.change_held: adds delta to b.held, and marks batch b for order.update_batches, even if delta is 0.
function order.change_held(q, b, delta)
  b.held = b.held + delta
  q.changed[b.name] = b
end

-- order.advance_time: advances the virtual time of batch b after a grant. The new time is UNIT / weight above
-- the highest virtual time at which any batch got a slot.
function order.advance_time(q, b)
  q.state.time = math.max(b.time, q.state.time)
  b.time = q.state.time + math.max(math.floor(UNIT / b.weight), 1)
end

-- order.update_batches: updates the sums in the state and the members of KEYS[9] for each batch in q.changed, and
-- collects the new records of these batches in q.fields.
function order.update_batches(q)
  for name, b in pairs(q.changed) do
    read_waiters(q, b)
    local s = q.state
    local plain_member = contest_member(b)
    local weight = weight_in_sum(b)
    local urgent_slots, urgent_waiters = urgent_contribution(q, b)
    s.weights = s.weights + weight - b.counted_weight
    s.lane = s.lane + urgent_slots - b.urgent_slots
    s.urgent = s.urgent + urgent_waiters - b.urgent_waiters
    if b.member and b.member ~= (b.has_notifiable and plain_member .. b.lane_flag) then
      -- If the batch was urgent, it had two members. The second member is b.member without its last
      -- character U, that is the first 37 characters.
      redis.call('ZREM', q.contest, b.member, string.sub(b.member, 1, 37))
    end
    b.counted_weight = weight
    b.urgent_slots = urgent_slots
    b.urgent_waiters = urgent_waiters
    b.member = b.has_notifiable and plain_member .. b.lane_flag
    q.changed[name] = nil
    if b.has_notifiable then
      local ratio = b.closed and CLOSED_RATIO or b.held / b.weight
      -- An urgent batch gets two members, one with precedence and one without. For any other batch, the two
      -- members are equal, so ZADD writes one member, which gets the second score.
      redis.call(
        'ZADD',
        q.contest,
        exact_text(ratio - PRECEDENCE_BONUS),
        b.member,
        exact_text(ratio),
        plain_member
      )
    end
    q.fields[#q.fields + 1], q.fields[#q.fields + 2] =
      name,
      core.text(b.weight) .. '|' .. core.text(b.time) .. '|' .. b.lane_flag .. (b.closed and 'X' or '')
  end
end

-- order.write_batches: writes the collected q.fields to KEYS[8] in one command.
function order.write_batches(q)
  if #q.fields > 0 then
    redis.call('HSET', q.batch, unpack(q.fields))
  end
  q.fields = {}
end

-- order.delete_idle_batches: deletes the records of the batches that have neither waiters nor held slots. It
-- also computes the sums state.lane and state.urgent anew, which corrects wrong sums.
function order.delete_idle_batches(q)
  order.write_batches(q)
  q.state.lane = 0
  q.state.urgent = 0
  for _, name in ipairs(redis.call('HKEYS', q.batch)) do
    local b = name ~= 'pool' and order.load_batch(q, name)
    -- The sums state.lane and state.urgent do not include this batch yet, because they were set to 0.
    if b then
      b.urgent_slots = 0
      b.urgent_waiters = 0
      q.changed[name] = b
    end
    order.update_batches(q)
    order.write_batches(q)
    if b and count_waiters(q, name) + b.held == 0 then
      redis.call('HDEL', q.batch, name)
    end
  end
end

-- order.first_entry: returns the first member of KEYS[9] (the contest) and the id of its batch. It returns nil if
-- no batch can be offered a slot.
function order.first_entry(q)
  -- Negative scores belong to members of urgent batches with precedence. These members are skipped if urgent
  -- batches have their whole share already.
  local entry = redis.call(
    'ZRANGEBYSCORE',
    q.contest,
    order.urgent_room(q) > 0 and '-inf' or 0,
    '(' .. PRECEDENCE_BONUS,
    'LIMIT',
    0,
    1
  )[1]
  -- A member is the virtual time (20 digits), '|' and the id of the batch (16 digits).
  return entry, entry and string.sub(entry, 22, 37)
end

-- order.delete_entry: deletes a member of KEYS[9] (the contest) whose batch has no waiter that can be notified, so
-- that order.first_entry does not return it again.
function order.delete_entry(q, entry)
  redis.call('ZREM', q.contest, entry)
end

-- order.best_want: returns the index of the want that is first in the order of the pool, and whether its batch is
-- urgent and has precedence. wants must not be empty.
function order.best_want(q, wants)
  local best_index, least_ratio, best_key
  order.update_batches(q)
  for n, want in ipairs(wants) do
    local b = order.load_batch(q, want.batch, want)
    local ratio = order.held_per_weight(q, b)
    local key = contest_member(b) .. want.order
    if not best_index or ratio < least_ratio or ratio == least_ratio and key < best_key then
      best_index = n
      least_ratio = ratio
      best_key = key
    end
  end
  return best_index, least_ratio < 0
end

-- order.position: returns two numbers for a want. The first is its estimated position in the queue of the pool; 1
-- is the next grant. The second is its rank, from 1, among the waiters of its batch.
function order.position(q, device, want)
  order.update_batches(q)
  local b = order.load_batch(q, want.batch, want)
  local room = math.max(order.urgent_room(q), 0)
  local batch_rank = count_waiters(q, want.batch, want.order .. '|' .. device) + 1
  local rank = batch_rank
  -- Sum of the weights of all batches with waiters and of this batch, which may have no waiter yet.
  local weights = math.max(q.state.weights - b.counted_weight, 0) + b.weight
  -- The batch has `lead` slots less than its share, so the next `lead` grants are assumed to go to the batch.
  -- For an urgent batch, `lead` is at least `room`.
  local lead = math.max(q.pool.capacity * b.weight / weights - b.held, b.lane_flag == 'U' and room or 0)
  -- After the first `lead` grants, the batch gets b.weight of every `weights` grants of the pool.
  if rank > lead then
    rank = math.floor(lead + (rank - lead) * weights / b.weight)
  end
  -- Waiters of urgent batches get at most `room` slots before this batch.
  if b.lane_flag == '' then
    rank = rank + math.min(room, q.state.urgent)
  end
  return math.max(math.min(rank, order.queue_size(q) + 1), 1), batch_rank
end

return order
