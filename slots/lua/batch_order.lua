-- order: decides which batch of a pool gets the next slot. It stores the records of the batches, their
-- weights, virtual times and shares, and the contest: a list of the batches in the order in which they
-- get slots. The order of the waiters (waiting devices) inside one batch is the order of KEYS[5]
-- (queue.lua). scripts.go puts this file behind core.lua and in front of queue.lua; queue.lua and the
-- scripts use the returned table as `order`. The functions receive the table q that queue.open returned.
--
-- KEYS[5]  queue  ZSET  as in queue.lua; this file only counts its members
-- KEYS[6]  waiter HASH  as in queue.lua; this file only counts its fields
-- KEYS[8]  batch  HASH
--     id of a batch -> "weight|virtual time|flags" (the record of the batch); flags contains U if the
--                      batch is urgent, and X if it is closed
--     "pool" -> JSON object (the state of the queue). queue.lua describes its other fields:
--         time     highest virtual time at which a batch was granted a slot
--         weights  sum of the weights of all batches that have waiters and are not closed
--         percent  percentage of the capacity for which urgent batches have precedence
--         lane     number of slots that all urgent batches together hold or are offered
--         urgent   number of waiters in urgent batches that are not closed
-- KEYS[9]  contest  ZSET  all batches that have a waiter of class T (it can be notified, no offer yet):
--     "virtual time|batch"   -> (held + offered slots) / weight
--     "virtual time|batchU"  -> the same quotient minus PRECEDENCE_BONUS; only for urgent batches
--     If the batch is closed, the quotient is replaced by CLOSED_RATIO.
--
-- Order. The next slot goes to the batch with the lowest held / weight; offered slots count as held. If
-- this number is equal for two batches, the slot goes to the batch with the lower virtual time. The
-- virtual time of a batch grows by UNIT / weight with each grant. If the virtual times are equal too, the
-- slot goes to the older batch. Urgent batches precede all other batches while all urgent batches
-- together hold less than `percent` percent of the capacity, rounded up to slots. From that number of
-- slots on, they compete like all other batches.
--
-- A closed batch may start no task, for example because it is paused. Its waiters stay in the queue until
-- their devices report, but they get no offer, and no slot is kept for them. A want of the batch opens it.
--
-- Invariants:
--   After order.update_batches, the contest and the fields weights, lane and urgent include all changes
--   of held slots and waiters that this script call has made. If a want (a task that needs a slot) has
--   another weight or lane than its batch, the contest and these fields include the new values after the
--   next change of held slots or waiters of the batch.
--   The virtual time of a batch never decreases. If a batch without waiters is read, its virtual time
--   is raised to state.time.
--   The record of a batch is deleted only if the batch has neither waiters nor held slots.
--   If a record is lost, only the order of the batches changes. A batch without a record has weight 1 and
--   virtual time 0, until the next want of the batch brings its weight and lane.

local order = {}
-- The virtual time of a batch orders batches that hold equally many slots per weight. It grows by UNIT /
-- weight with each grant.
local UNIT = 1000000
-- This number is subtracted from the quotient held / weight of urgent batches, so that they precede all
-- others. It is larger than any such quotient.
local PRECEDENCE_BONUS = 16384
-- The score of a closed batch in the contest. It is so high that order.first_entry does not read the batch,
-- even if PRECEDENCE_BONUS is subtracted from it.
local CLOSED_RATIO = 2 * PRECEDENCE_BONUS

-- order.member_range: returns two bounds for ZRANGEBYLEX that select the members of KEYS[5] (the queue of a
-- pool) that have this class: T, O or P for a waiting device, H for a held slot (queue.lua). If batch is
-- given, the range contains only members of this batch. If before is given, it contains only members that
-- sort before this text, which has the form "order" or "order|device".
function order.member_range(class, batch, before)
  local from = class .. '|' .. (batch and batch .. '|' or '')
  return '[' .. from, '(' .. from .. (before or '\255')
end

-- order.queue_size: returns the number of waiters (waiting devices) in the queue. It asks Redis only if
-- q.size is not set yet.
function order.queue_size(q)
  q.size = q.size or redis.call('HLEN', q.waiter)
  return q.size
end

-- order.count_members: returns the number of members of KEYS[5] (the queue of a pool) that have this class:
-- T, O or P for a waiting device, H for a held slot (queue.lua). With the optional arguments batch and
-- before, it counts only a part of them (order.member_range).
function order.count_members(q, class, ...)
  -- If no device waits, all members have the class H (held slots). If there are no offers, no member has the
  -- class O.
  if class ~= 'H' and order.queue_size(q) == 0 or class == 'O' and q.offered == 0 then
    return 0
  end
  return redis.call('ZLEXCOUNT', q.queue, order.member_range(class, ...))
end

-- count_waiters: returns the number of waiters (waiting devices): the members with the classes T, O and P.
-- The optional arguments batch and before restrict the count (order.member_range).
local function count_waiters(q, ...)
  return order.count_members(q, 'T', ...)
    + order.count_members(q, 'O', ...)
    + order.count_members(q, 'P', ...)
end

-- held_and_offered: returns how many slots tasks of this batch hold, plus how many slots are offered to
-- waiters (waiting devices) of this batch.
local function held_and_offered(q, batch)
  return order.count_members(q, 'H', batch) + order.count_members(q, 'O', batch)
end

-- exact_text: returns the number n as a text with 17 digits, from which Redis reads exactly the same number.
local function exact_text(n)
  return string.format('%.17g', n)
end

-- contest_member: returns the member of KEYS[9] (the contest, which orders the batches of a pool) for batch
-- b: a text of 37 characters, "virtual time|batch". The letter U, which an urgent batch has at the end, is
-- missing.
local function contest_member(b)
  return string.format('%020.0f|', b.time) .. b.name
end

-- order.urgent_room: returns the number of further slots that urgent batches can get with precedence over
-- other batches. If urgent batches hold their whole share of the pool, the number is 0 or negative.
function order.urgent_room(q)
  return math.ceil(q.pool.capacity * q.state.percent / 100) - q.state.lane
end

-- order.held_per_weight: returns the number by which batches are ordered (the lowest gets the next slot): the
-- held and offered slots of batch b, divided by its weight. The number is negative if b is urgent and has
-- precedence.
function order.held_per_weight(q, b)
  return b.held / b.weight - (b.lane == 'U' and order.urgent_room(q) > 0 and PRECEDENCE_BONUS or 0)
end

-- order.is_below_share: reports whether batch b would still hold less than its share of the pool after one
-- more grant. The share of a batch is the capacity times the weight of the batch, divided by the sum of the
-- weights of all batches that have waiters.
function order.is_below_share(q, b)
  return (b.held + 1) * (q.state.weights - b.counted_weight + b.weight) < q.pool.capacity * b.weight
end

-- urgent_contribution: returns the two numbers that batch b adds to state.lane and to state.urgent: its
-- held and offered slots, and its waiters (0 if b is closed). Both numbers are 0 if b is not urgent.
local function urgent_contribution(q, b)
  if b.lane == 'U' then
    return b.held, b.closed and 0 or count_waiters(q, b.name)
  else
    return 0, 0
  end
end

-- weight_in_sum: returns the number that batch b adds to state.weights.
local function weight_in_sum(b)
  return b.has_waiters and not b.closed and b.weight or 0
end

-- read_waiters: sets two fields of batch b. b.has_waiters is true if a device waits with a task of b;
-- b.has_notifiable is true if one of these devices has class T (it can be notified and has no offer). If
-- no device waits or b is closed, the virtual time of b is raised to state.time, so that b gains no
-- advantage from the time in which it could get no slot.
local function read_waiters(q, b)
  b.has_notifiable = order.count_members(q, 'T', b.name) > 0
  b.has_waiters = b.has_notifiable
    or order.count_members(q, 'O', b.name) > 0
    or order.count_members(q, 'P', b.name) > 0
  if not b.has_waiters or b.closed then
    b.time = math.max(b.time, q.state.time)
  end
end

-- order.load_batch: returns the batch whose id is name, from the cache q.batches or from KEYS[8] (the records
-- of batches). If want (a task of the batch that needs a slot) is given, the weight and the lane of the want
-- replace those of the batch. If want is urgent, its lane also replaces state.percent. The fields of a batch:
--   name            id of the batch, 16 digits
--   weight, time    weight and virtual time of the batch
--   lane            U if the batch is urgent, else empty
--   closed          true if the batch is closed
--   held            number of held and offered slots
--   has_notifiable  true if the batch has a waiter of class T
--   has_waiters     true if the batch has a waiter of any class
--   counted_weight  the number that the batch adds to state.weights (weight_in_sum)
--   urgent_slots    the number that the batch adds to state.lane
--   urgent_waiters  the number that the batch adds to state.urgent
--   member          the member of the batch in the contest, with U if the batch is urgent; false if the
--                   batch is not in the contest
function order.load_batch(q, name, want)
  local b = q.batches[name]
  if not b then
    local text = redis.call('HGET', q.batch, name)
    -- A batch without a record in KEYS[8] has the weight 1 and the virtual time 0.
    local weight, time, lane_flag, closed_flag = string.match(text or '1|0|', '(%d+)|(%d+)|(U?)(X?)')
    q.has_new_batch = q.has_new_batch or not text
    b = {
      name = name,
      weight = tonumber(weight),
      time = tonumber(time),
      lane = lane_flag,
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
    b.lane = want.lane and 'U' or ''
    q.state.percent = want.lane or q.state.percent
  end
  return b
end

-- order.set_closed: closes batch b or opens it. It writes nothing if this does not change b.
function order.set_closed(q, b, closed)
  if b.closed ~= closed then
    b.closed = closed
    q.changed[b.name] = b
  end
end

-- order.change_held: adds delta to b.held, the number of slots that batch b holds or is offered. It also adds
-- b to q.changed, the batches that must be updated. order.update_batches later updates the sums in the state
-- and the contest.
function order.change_held(q, b, delta)
  b.held = b.held + delta
  q.changed[b.name] = b
end

-- order.advance_time: advances the virtual time of batch b after a grant to b. First it raises state.time to
-- the virtual time of b, if that is higher. Then the virtual time of b becomes state.time + UNIT / weight.
function order.advance_time(q, b)
  q.state.time = math.max(b.time, q.state.time)
  b.time = q.state.time + math.max(math.floor(UNIT / b.weight), 1)
end

-- order.update_batches: processes each batch in q.changed (batches whose slots or waiters changed). It
-- updates the sums in the state (weights, lane, urgent) and the members of the batch in the contest. It also
-- adds the new record of the batch to q.fields, which order.write_batches writes to Redis.
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
    if b.member and b.member ~= (b.has_notifiable and plain_member .. b.lane) then
      -- An urgent batch has a second member, without the U: the first 37 characters.
      redis.call('ZREM', q.contest, b.member, string.sub(b.member, 1, 37))
    end
    b.counted_weight = weight
    b.urgent_slots = urgent_slots
    b.urgent_waiters = urgent_waiters
    b.member = b.has_notifiable and plain_member .. b.lane
    q.changed[name] = nil
    if b.has_notifiable then
      local ratio = b.closed and CLOSED_RATIO or b.held / b.weight
      -- If the batch is not urgent, both members are equal, so the second score replaces the first.
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
      core.text(b.weight) .. '|' .. core.text(b.time) .. '|' .. b.lane .. (b.closed and 'X' or '')
  end
end

-- order.write_batches: writes the collected fields in q.fields to KEYS[8], the hash with the records of the
-- batches and the state of the queue. Then it clears q.fields.
function order.write_batches(q)
  if #q.fields > 0 then
    redis.call('HSET', q.batch, unpack(q.fields))
  end
  q.fields = {}
end

-- order.delete_idle_batches: deletes the records of all batches that have neither waiters (waiting devices)
-- nor held slots. It also computes state.lane and state.urgent again from the other batches.
function order.delete_idle_batches(q)
  order.write_batches(q)
  q.state.lane = 0
  q.state.urgent = 0
  for _, name in ipairs(redis.call('HKEYS', q.batch)) do
    local b = name ~= 'pool' and order.load_batch(q, name)
    -- The sums state.lane and state.urgent were set to 0 above, so they contain nothing of this batch yet.
    -- order.update_batches adds the numbers of the batch.
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

-- order.first_entry: returns the member of the contest (KEYS[9]) whose batch gets the next slot, and the id
-- of this batch. If no batch can get a slot, it returns nil.
function order.first_entry(q)
  -- Members with a negative score belong to urgent batches. They are read only while urgent batches have
  -- precedence.
  local entry = redis.call(
    'ZRANGEBYSCORE',
    q.contest,
    order.urgent_room(q) > 0 and '-inf' or 0,
    '(' .. PRECEDENCE_BONUS,
    'LIMIT',
    0,
    1
  )[1]
  -- The member begins with the virtual time and '|' (21 characters). The id of the batch follows.
  return entry, entry and string.sub(entry, 22, 37)
end

-- order.delete_entry: deletes the entry of a batch without waiters from the contest (KEYS[9], the order of the
-- batches).
function order.delete_entry(q, entry)
  redis.call('ZREM', q.contest, entry)
end

-- order.best_want: returns the index of the want (a task that needs a slot) that precedes all other wants of
-- the list, and true if its batch is urgent and has precedence. wants must not be empty.
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

-- order.position: returns the position of the want (a task of the device that needs a slot) in the queue of
-- the pool. Position 1 means that the want is expected to get a slot with the next grant of the pool,
-- position 2 with the grant after it. The position is at least 1 and at most the number of waiters plus 1.
-- The second result is the rank of the want among the waiters of its own batch, from 1.
function order.position(q, device, want)
  order.update_batches(q)
  local b = order.load_batch(q, want.batch, want)
  local room = math.max(order.urgent_room(q), 0)
  local batch_rank = count_waiters(q, want.batch, want.order .. '|' .. device) + 1
  local rank = batch_rank
  -- weights is the sum of the weights of all batches that have waiters, including this batch.
  local weights = math.max(q.state.weights - b.counted_weight, 0) + b.weight
  -- It is assumed that all of the next `lead` grants go to this batch. lead is the number of slots that
  -- the batch lacks to its share. For an urgent batch, lead is at least the number of slots for which
  -- urgent batches have precedence.
  local lead = math.max(q.pool.capacity * b.weight / weights - b.held, b.lane == 'U' and room or 0)
  -- After those `lead` grants, the batch gets b.weight of every `weights` grants of the pool.
  if rank > lead then
    rank = math.floor(lead + (rank - lead) * weights / b.weight)
  end
  -- If this batch is not urgent, the waiters of urgent batches get their slots first, so they are counted.
  if b.lane == '' then
    rank = rank + math.min(room, q.state.urgent)
  end
  return math.max(math.min(rank, order.queue_size(q) + 1), 1), batch_rank
end

return order
