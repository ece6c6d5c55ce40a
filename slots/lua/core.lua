-- core: decides whether a slot is given. The decision uses no clock and does not read the queue, so CAP
-- holds even if every other key of the pool is lost or wrong. scripts.go puts this file in front of each
-- script; the script uses the returned table as `core`. A pool has one hash tag, so all of its keys
-- are on one node of a Redis Cluster.
--
-- KEYS[1]  config  HASH
--     capacity   number of slots of the pool
--     version    version of the capacity; a newer version replaces an older one
--     call       id of the call that set the capacity
--     restoring  id of the restore call that fills the pool; the only field of an unknown pool
-- KEYS[2]  free    ZSET  slot, five digits -> 0 if the slot is free, 1 if the slot is held
-- KEYS[3]  holder  HASH  slot -> "acquired|ends|device|batch|lease" (a holder)
--     acquired, ends  start and end of the lease in ms of Redis TIME; they are only displayed
--     batch           id of the batch, 16 digits
-- KEYS[4]  lease   HASH  lease id -> slot, five digits
--
-- Invariants of a known pool, before and after every script. The tests use these names:
--   INVERSE    holder and lease are each other's inverse.
--   PARTITION  A slot has score 1 if and only if it has a holder.
--   RANGE      free contains every slot number below the capacity. A slot number at or above the
--              capacity is in free only while the slot is held.
--   CAP        A slot is given only while fewer slots are held than the capacity.
--   FENCE      Only the complete lease id that holds a slot frees the slot.
--
-- By PARTITION and RANGE, a slot below the capacity is free whenever fewer slots are held than the
-- capacity. If a pool lost a key of the core, INVERSE, PARTITION or RANGE is broken. core.pool
-- detects the loss: the pool is unknown and grants nothing until a restore. Redis rolls nothing back
-- when a script fails, so every script reads its arguments before its first write.

local core = {}

-- core.now: returns the time of Redis in ms.
function core.now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- core.text: returns the whole number n as text without an exponent.
function core.text(n)
  return string.format('%.0f', n)
end

-- core.pool: reads the size of the pool. Returns a table p with the names of the four keys of the
-- core, held (the number of held slots) and capacity. p.capacity is nil if the pool is unknown.
function core.pool(keys)
  local p = {
    config = keys[1],
    free = keys[2],
    holder = keys[3],
    lease = keys[4],
    held = redis.call('HLEN', keys[4]),
  }
  local capacity = tonumber(redis.call('HGET', p.config, 'capacity') or nil)
  local slots = redis.call('ZCARD', p.free)
  local free = redis.call('ZCOUNT', p.free, 0, 0)
  -- The pool is known only if the sizes of all four keys agree.
  if capacity and slots >= capacity and redis.call('HLEN', p.holder) == p.held and free == slots - p.held then
    p.capacity = capacity
  end
  return p
end

-- parse_holder: parses text, the holder of a slot. Returns the holder as a table with the fields
-- slot, acquired, ends, device, batch and lease.
local function parse_holder(slot, text)
  local acquired, ends, device, batch, lease = string.match(text, '^(%d+)|(%-?%d+)|([^|]*)|(%d+)|(.*)$')
  return {
    slot = tonumber(slot),
    acquired = tonumber(acquired),
    ends = tonumber(ends),
    device = device,
    batch = batch,
    lease = lease,
  }
end

-- core.holders: returns the holders of all held slots, in no particular order.
function core.holders(p)
  local flat = redis.call('HGETALL', p.holder)
  local all = {}
  for i = 1, #flat, 2 do
    all[#all + 1] = parse_holder(flat[i], flat[i + 1])
  end
  return all
end

-- core.slot: returns the slot that the lease holds, or nil if the lease holds no slot.
function core.slot(p, lease)
  return tonumber(redis.call('HGET', p.lease, lease) or nil)
end

-- write_holder: writes r as the holder of slot r.slot and increments p.held if r.lease held no slot
-- before. No other lease may hold the slot.
local function write_holder(p, r)
  local slot = string.format('%05d', r.slot)
  p.held = p.held + redis.call('HSET', p.lease, r.lease, slot)
  redis.call(
    'HSET',
    p.holder,
    slot,
    table.concat({ core.text(r.acquired), core.text(r.ends), r.device, r.batch, r.lease }, '|')
  )
  redis.call('ZADD', p.free, 1, slot)
end

-- core.give: writes r as the holder of the lowest free slot and sets r.slot. r.lease must not hold
-- a slot yet. Returns the slot, or nil if as many slots are held as the capacity.
function core.give(p, r)
  if p.held >= p.capacity then
    return nil
  end
  r.slot = tonumber(redis.call('ZRANGEBYSCORE', p.free, 0, 0, 'LIMIT', 0, 1)[1])
  write_holder(p, r)
  return r.slot
end

-- core.take: frees the slot of the lease. Returns the former holder, or nil if the lease holds no
-- slot.
function core.take(p, lease)
  local slot = redis.call('HGET', p.lease, lease)
  if not slot then
    return nil
  end
  local r = parse_holder(slot, redis.call('HGET', p.holder, slot))
  -- HDEL must be the first write: Redis permits HDEL when its memory is full, and after the first
  -- write of a script it rejects no later command for lack of memory.
  redis.call('HDEL', p.lease, lease)
  redis.call('HDEL', p.holder, slot)
  -- A slot at or above the capacity disappears when it is freed (RANGE).
  if r.slot < p.capacity then
    redis.call('ZADD', p.free, 0, slot)
  else
    redis.call('ZREM', p.free, slot)
  end
  p.held = p.held - 1
  return r
end

-- core.adopt: writes h, a holder from the ledger, as the holder of slot h.slot. h has the fields
-- slot, lease, device, batch, age (ms since the grant) and left (ms until the lease ends, negative
-- after its end). If h.lease holds another slot here, that slot is freed. Returns true, or false if
-- another lease holds slot h.slot; then nothing is written.
function core.adopt(p, h, now)
  local text = redis.call('HGET', p.holder, string.format('%05d', h.slot))
  local former_slot = core.slot(p, h.lease)
  if text and parse_holder(h.slot, text).lease ~= h.lease then
    return false
  end
  if former_slot and former_slot ~= h.slot then
    core.take(p, h.lease)
  end
  write_holder(p, {
    slot = h.slot,
    lease = h.lease,
    device = h.device,
    batch = h.batch,
    acquired = math.max(now - h.age, 0),
    ends = now + h.left,
  })
  return true
end

-- core.configure: changes the capacity from `from` to to.capacity and stores to.version and
-- to.call. If the capacity increases, the new slots are free. If the capacity decreases, the free
-- slots at or above to.capacity are removed; held slots stay.
function core.configure(p, from, to)
  for n = from, to.capacity - 1 do
    redis.call('ZADD', p.free, 'NX', 0, string.format('%05d', n))
  end
  for _, slot in ipairs(to.capacity < from and redis.call('ZRANGEBYSCORE', p.free, 0, 0) or {}) do
    if tonumber(slot) >= to.capacity then
      redis.call('ZREM', p.free, slot)
    end
  end
  redis.call(
    'HSET', p.config, 'capacity', core.text(to.capacity), 'version', core.text(to.version), 'call', to.call
  )
end

return core
