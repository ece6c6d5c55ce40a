-- core: decides whether a lease gets a slot of a pool. The decision uses no clock and does not read the
-- queue of waiting devices. So the invariant CAP (below) holds even if every other key of the pool is
-- lost or wrong. scripts.go puts this file in front of each script of this directory; the script uses
-- the returned table as `core`. All keys of a pool have the same hash tag, so they are on one node of
-- a Redis Cluster.
--
-- KEYS[1]  config  HASH
--     capacity   number of slots of the pool
--     version    version of the capacity; a newer version replaces an older one
--     call       id of the script call that set the capacity
--     restoring  id of the restore that is filling the pool (restore.lua). config has no other field
--                until this restore is complete
-- KEYS[2]  free    ZSET  slot number, five digits -> 0 if the slot is free, 1 if the slot is held
-- KEYS[3]  holder  HASH  slot number, five digits -> "acquired|ends|device|batch|lease" (a holder):
--     acquired, ends  start and end of the lease in ms of Redis TIME; they are only displayed
--     device          the device or caller that has the slot
--     batch           id of the batch, 16 digits
--     lease           id of the lease
-- KEYS[4]  lease   HASH  lease id -> slot number, five digits
--
-- Invariants of a known pool (core.pool), before and after every script. The tests use these names:
--   INVERSE    KEYS[3] and KEYS[4] contain the same pairs of slot and lease.
--   PARTITION  A slot has score 1 in KEYS[2] if and only if it has a holder in KEYS[3].
--   RANGE      KEYS[2] contains every slot number below the capacity. A slot number at or above the
--              capacity is in KEYS[2] only while the slot is held.
--   CAP        A slot is given only while the number of held slots is lower than the capacity.
--   FENCE      A slot is freed only with the complete id of the lease that holds it.
--
-- By PARTITION and RANGE, a slot below the capacity is free whenever the number of held slots is lower
-- than the capacity. If Redis lost one of these four keys, INVERSE, PARTITION or RANGE is broken.
-- core.pool detects the loss, and the pool is unknown: no slot is given until a restore fills the pool
-- again (restore.lua). If a script fails, Redis does not undo its writes, so every script reads its
-- arguments before its first write.

local core = {}

-- core.now: returns the present time of Redis in ms since 1970.
function core.now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- core.text: returns the whole number n as decimal text without an exponent.
function core.text(n)
  return string.format('%.0f', n)
end

-- core.pool: reads the capacity and the number of held slots of a pool. keys is KEYS of the script. Returns
-- the table p, which the other functions of this file receive: config, free, holder and lease are the names
-- of KEYS[1] to KEYS[4], held is the number of held slots, and capacity is the number of slots. If the pool
-- is unknown (Redis lost one of these keys), p.capacity is nil.
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
  -- The pool is known only if the sizes of all four keys agree. Otherwise p.capacity stays nil.
  if capacity and slots >= capacity and redis.call('HLEN', p.holder) == p.held and free == slots - p.held then
    p.capacity = capacity
  end
  return p
end

-- parse_holder: parses text, the value of a slot in KEYS[3]: "acquired|ends|device|batch|lease". Returns
-- a holder: a table with these five fields and the number of the slot.
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

-- core.holders: returns the holders (devices or callers) of all held slots of pool p, in no particular order.
-- Each holder is a table as parse_holder returns it.
function core.holders(p)
  local flat = redis.call('HGETALL', p.holder)
  local all = {}
  for i = 1, #flat, 2 do
    all[#all + 1] = parse_holder(flat[i], flat[i + 1])
  end
  return all
end

-- core.slot: returns the number of the slot that the lease with this id holds in pool p. If the lease holds
-- no slot, it returns nil.
function core.slot(p, lease)
  return tonumber(redis.call('HGET', p.lease, lease) or nil)
end

-- write_holder: writes r (a table with the fields of parse_holder: slot, lease, device and others) as the
-- holder of slot r.slot of pool p. If r.lease held no slot before, it increments p.held. No other lease may
-- hold the slot.
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

-- core.give: gives the lowest free slot of pool p to the lease r.lease: it sets r.slot and writes r
-- as the holder of this slot. r.lease must not hold a slot yet. Returns the number of the slot. If the
-- number of held slots is not lower than the capacity, it returns nil and writes nothing.
function core.give(p, r)
  if p.held >= p.capacity then
    return nil
  end
  r.slot = tonumber(redis.call('ZRANGEBYSCORE', p.free, 0, 0, 'LIMIT', 0, 1)[1])
  write_holder(p, r)
  return r.slot
end

-- core.take: frees the slot of pool p that the lease with this id holds. Returns the former holder (a table
-- as parse_holder returns it). If the lease holds no slot, it returns nil.
function core.take(p, lease)
  local slot = redis.call('HGET', p.lease, lease)
  if not slot then
    return nil
  end
  local r = parse_holder(slot, redis.call('HGET', p.holder, slot))
  -- HDEL must be the first write. Redis permits HDEL even when its memory is full. After the first write
  -- of a script, Redis does not reject the other commands of the script for lack of memory.
  redis.call('HDEL', p.lease, lease)
  redis.call('HDEL', p.holder, slot)
  -- A freed slot at or above the capacity is removed from the pool (invariant RANGE).
  if r.slot < p.capacity then
    redis.call('ZADD', p.free, 0, slot)
  else
    redis.call('ZREM', p.free, slot)
  end
  p.held = p.held - 1
  return r
end

-- core.adopt: writes h, a holder from the ledger (the SQL database), as the holder of slot h.slot. h has
-- the fields slot, lease, device, batch, age (ms since the grant) and left (ms until the lease ends,
-- negative after its end). now is the time of Redis in ms. If h.lease holds another slot of the pool,
-- that slot is freed. Returns true. If another lease holds slot h.slot, nothing is written and the
-- result is false.
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

-- core.configure: changes the capacity of pool p. `from` is the old capacity, to.capacity the new one. It
-- also stores to.version and to.call (the id of the script call). If the capacity increases, the new slots
-- are free. If the capacity decreases, the free slots with a number at or above to.capacity are removed, but
-- held slots stay.
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
