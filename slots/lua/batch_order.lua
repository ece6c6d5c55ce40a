-- order: decides which batch gets the next slot. It keeps the records of the batches, their weights,
-- virtual times and shares, and the contest between them. The order of the waiters of one batch is
-- the order of KEYS[5] (queue.lua). scripts.go puts this file behind core.lua and in front of
-- queue.lua; queue.lua and the scripts use the returned table as `order`. The argument q of the
-- functions is the table that queue.open returns.
--
-- KEYS[5]  queue  ZSET  as in queue.lua; this file only counts its members
-- KEYS[6]  waiter HASH  as in queue.lua; this file only counts its fields
-- KEYS[8]  batch  HASH
--     batch  -> "weight|virtual time|lane"; lane is U for an urgent batch, else empty
--     "pool" -> JSON object (the state of the queue). Its other fields: see queue.lua
--         time     highest virtual time at which a batch was granted a slot
--         weights  sum of the weights of all batches that have waiters
--         percent  percentage of the capacity for which urgent batches have precedence
--         lane     number of slots that urgent batches hold or are offered; not the lane of a batch
--         urgent   number of waiters in urgent batches
-- KEYS[9]  contest  ZSET  all batches that have a waiter of class T:
--     "virtual time|batch"   -> (held + offered slots) / weight
--     "virtual time|batchU"  -> the same number minus PRECEDENCE_BONUS; only for urgent batches
--
-- Order. The next slot goes to the batch with the lowest held / weight; offered slots count as held.
-- If two batches are equal, the slot goes to the batch with the lower virtual time, which grows by
-- UNIT / weight with each grant, then to the older batch. Urgent batches precede all other batches
-- while they hold together less than `percent` percent of the capacity, rounded up. From that number
-- of slots on, they compete like all other batches.
--
-- Invariants:
--   After order.update_batches, the contest and the fields weights, lane and urgent include all
--   changes of held slots and waiters in this call. The weight and the lane of a want enter them with
--   the next such change of its batch.
--   The virtual time of a batch never decreases. If a batch without waiters is read, its virtual time
--   is raised to state.time.
--   A record is deleted only if its batch has neither waiters nor held slots.
--   A lost record changes only the order: a batch without a record has weight 1 and virtual time 0,
--   until its next want brings its weight and lane.

local order = {}
-- Virtual time of one grant in a batch of weight 1.
local UNIT = 1000000
-- Subtracted from held / weight of urgent batches; larger than any held / weight.
local PRECEDENCE_BONUS = 16384

-- order.member_range: returns the lower and the upper bound, for ZRANGEBYLEX, of the members of
-- KEYS[5] with this class. If batch is given, only members of the batch are in the range. If before
-- is given, only members before this text, "order" or "order|device", are in the range.
function order.member_range(class, batch, before)
  local from = class .. '|' .. (batch and batch .. '|' or '')
  return '[' .. from, '(' .. from .. (before or '\255')
end

-- order.queue_size: returns the number of waiters. It reads the number from Redis once per call.
function order.queue_size(q)
  q.size = q.size or redis.call('HLEN', q.waiter)
  return q.size
end

-- order.count_members: returns the number of members of KEYS[5] with this class. The optional
-- arguments batch and before limit the range (order.member_range).
function order.count_members(q, class, ...)
  -- Without waiters, or without offers, no read is needed.
  if class ~= 'H' and order.queue_size(q) == 0 or class == 'O' and q.offered == 0 then
    return 0
  end
  return redis.call('ZLEXCOUNT', q.queue, order.member_range(class, ...))
end

-- count_waiters: returns the number of waiters of all classes. The optional arguments batch and
-- before limit the range (order.member_range).
local function count_waiters(q, ...)
  return order.count_members(q, 'T', ...)
    + order.count_members(q, 'O', ...)
    + order.count_members(q, 'P', ...)
end

-- held_and_offered: returns the number of slots that the batch holds or is offered.
local function held_and_offered(q, batch)
  return order.count_members(q, 'H', batch) + order.count_members(q, 'O', batch)
end

-- exact_text: returns the number n as text that Redis reads back without loss.
local function exact_text(n)
  return string.format('%.17g', n)
end

-- contest_member: returns the member of batch b in the contest, "virtual time|batch", 37 characters.
local function contest_member(b)
  return string.format('%020.0f|', b.time) .. b.name
end

-- order.urgent_room: returns the number of slots for which urgent batches still have precedence. The
-- number is 0 or negative if urgent batches hold their whole share.
function order.urgent_room(q)
  return math.ceil(q.pool.capacity * q.state.percent / 100) - q.state.lane
end

-- order.held_per_weight: returns held / weight of batch b, the number by which batches are ordered.
-- Offered slots count as held. The number is negative if b is urgent and has precedence.
function order.held_per_weight(q, b)
  return b.held / b.weight - (b.lane == 'U' and order.urgent_room(q) > 0 and PRECEDENCE_BONUS or 0)
end

-- order.is_below_share: reports whether batch b, with one slot more, would still hold less than its
-- share: the capacity times its weight, divided by the weights of all batches that have waiters.
function order.is_below_share(q, b)
  return (b.held + 1) * (q.state.weights - b.counted_weight + b.weight) < q.pool.capacity * b.weight
end

-- urgent_contribution: returns what batch b adds to state.lane and to state.urgent: the number of its
-- held and offered slots, and the number of its waiters. Both are 0 if b is not urgent.
local function urgent_contribution(q, b)
  if b.lane == 'U' then
    return b.held, count_waiters(q, b.name)
  else
    return 0, 0
  end
end

-- read_waiters: sets b.has_notifiable and b.has_waiters. If b has no waiter, its virtual time is
-- raised to state.time, so a batch gains no credit while no device waits with its tasks.
local function read_waiters(q, b)
  b.has_notifiable = order.count_members(q, 'T', b.name) > 0
  b.has_waiters = b.has_notifiable
    or order.count_members(q, 'O', b.name) > 0
    or order.count_members(q, 'P', b.name) > 0
  if not b.has_waiters then
    b.time = math.max(b.time, q.state.time)
  end
end

-- order.load_batch: returns the batch with this name, from the cache of the call or from KEYS[8]. If
-- want is given, its weight and lane replace the stored ones, and the lane of an urgent want replaces
-- state.percent. The fields of a batch:
--   name, weight, time, lane  as in KEYS[8]
--   held            number of held and offered slots
--   has_notifiable  true if the batch has a waiter of class T
--   has_waiters     true if the batch has a waiter of any class
--   counted_weight  what the batch adds to state.weights: its weight, or 0 if it has no waiter
--   urgent_slots    what the batch adds to state.lane
--   urgent_waiters  what the batch adds to state.urgent
--   member          its member in the contest, with U if the batch is urgent; false if it has none
function order.load_batch(q, name, want)
  local b = q.batches[name]
  if not b then
    local text = redis.call('HGET', q.batch, name)
    -- A batch without a record has weight 1 and virtual time 0.
    local weight, time, lane_flag = string.match(text or '1|0|', '(%d+)|(%d+)|(U?)')
    q.has_new_batch = q.has_new_batch or not text
    b = {
      name = name,
      weight = tonumber(weight),
      time = tonumber(time),
      lane = lane_flag,
      held = held_and_offered(q, name),
    }
    b.member = contest_member(b) .. lane_flag
    b.urgent_slots, b.urgent_waiters = urgent_contribution(q, b)
    read_waiters(q, b)
    b.counted_weight = b.has_waiters and b.weight or 0
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

-- order.change_held: adds delta to b.held, the number of slots that batch b holds or is offered, and
-- marks b as changed. order.update_batches updates the sums and the contest later.
function order.change_held(q, b, delta)
  b.held = b.held + delta
  q.changed[b.name] = b
end

-- order.advance_time: advances the virtual time of batch b by one grant.
function order.advance_time(q, b)
  q.state.time = math.max(b.time, q.state.time)
  b.time = q.state.time + math.max(math.floor(UNIT / b.weight), 1)
end

-- order.update_batches: updates, for each changed batch, the sums in the state and the entries in the
-- contest. It adds the record of the batch to q.fields, which order.write_batches writes to Redis.
function order.update_batches(q)
  for name, b in pairs(q.changed) do
    read_waiters(q, b)
    local s = q.state
    local plain_member = contest_member(b)
    local weight = b.has_waiters and b.weight or 0
    local urgent_slots, urgent_waiters = urgent_contribution(q, b)
    s.weights = s.weights + weight - b.counted_weight
    s.lane = s.lane + urgent_slots - b.urgent_slots
    s.urgent = s.urgent + urgent_waiters - b.urgent_waiters
    if b.member and b.member ~= (b.has_notifiable and plain_member .. b.lane) then
      -- The first 37 characters are the member without the U of an urgent batch.
      redis.call('ZREM', q.contest, b.member, string.sub(b.member, 1, 37))
    end
    b.counted_weight = weight
    b.urgent_slots = urgent_slots
    b.urgent_waiters = urgent_waiters
    b.member = b.has_notifiable and plain_member .. b.lane
    q.changed[name] = nil
    if b.has_notifiable then
      local ratio = b.held / b.weight
      -- If the batch is not urgent, both members are the same, and the second score is stored.
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
      core.text(b.weight) .. '|' .. core.text(b.time) .. '|' .. b.lane
  end
end

-- order.write_batches: writes q.fields to KEYS[8] and clears q.fields.
function order.write_batches(q)
  if #q.fields > 0 then
    redis.call('HSET', q.batch, unpack(q.fields))
  end
  q.fields = {}
end

-- order.delete_idle_batches: deletes the batches that have neither waiters nor held slots, and
-- recomputes state.lane and state.urgent from the batches that are left.
function order.delete_idle_batches(q)
  order.write_batches(q)
  q.state.lane = 0
  q.state.urgent = 0
  for _, name in ipairs(redis.call('HKEYS', q.batch)) do
    local b = name ~= 'pool' and order.load_batch(q, name)
    -- After this, order.update_batches adds the whole contribution of the batch to the sums.
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

-- order.first_entry: returns the first member of the contest, and the name of its batch. It returns
-- nil if the contest has no member that counts.
function order.first_entry(q)
  -- Entries of urgent batches with negative scores count only while urgent batches have precedence.
  local entry = redis.call(
    'ZRANGEBYSCORE', q.contest, order.urgent_room(q) > 0 and '-inf' or 0, '+inf', 'LIMIT', 0, 1
  )[1]
  -- The batch follows after the virtual time and '|', 21 characters.
  return entry, entry and string.sub(entry, 22, 37)
end

-- order.delete_entry: deletes a member of the contest that has no waiter.
function order.delete_entry(q, entry)
  redis.call('ZREM', q.contest, entry)
end

-- order.best_want: returns the index of the want that is first in the order, and true if its batch is
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

-- order.position: returns the expected number of grants of the pool until the want gets a slot; 1
-- is the next grant. The result is at least 1 and at most the number of waiters plus 1.
function order.position(q, device, want)
  order.update_batches(q)
  local b = order.load_batch(q, want.batch, want)
  local room = math.max(order.urgent_room(q), 0)
  -- The rank of the want in its batch, from 1.
  local rank = count_waiters(q, want.batch, want.order .. '|' .. device) + 1
  -- The sum of the weights of all batches that have waiters, including this batch.
  local weights = math.max(q.state.weights - b.counted_weight, 0) + b.weight
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
  return math.max(math.min(rank, order.queue_size(q) + 1), 1)
end

return order
