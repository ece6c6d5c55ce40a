-- core: decides whether a lease gets a slot of a pool. scripts.go puts this file in front of every script of
-- this directory as the table `core`. The decision depends on no clock and on no key of the queue. So a wrong
-- queue cannot cause more grants than the capacity allows (invariant CAP).

-- The four keys of core. They have the same hash tag, so one node of a Redis Cluster has all keys of a pool.
-- KEYS[1]  config  HASH  the settings of the pool:
--     capacity   number of slots of the pool
--     version    version of the capacity; a newer version replaces an older one
--     call       id of the script call that set the capacity
--     restoring  id of the restore (restore.lua) that is filling the pool. While this field exists, config
--                has no other field
-- KEYS[2]  free    ZSET  slot number, five digits -> 0 if the slot is free, 1 if the slot is held
-- KEYS[3]  holder  HASH  slot number, five digits -> "acquired|ends|device|batch|lease":
--     acquired, ends  start and end of the lease in ms of Redis TIME; no script decides by them
--     device          the device or caller that has the slot
--     batch           id of the batch, 16 digits
--     lease           id of the lease
-- KEYS[4]  lease   HASH  lease id -> slot number, five digits

-- Invariants of a known pool, before and after every script (the tests use these names):
--  INVERSE    KEYS[3] and KEYS[4] contain the same pairs of slot and lease.
--  PARTITION  A slot has score 1 in KEYS[2] if and only if it has a holder in KEYS[3].
--  RANGE      KEYS[2] contains every slot number below the capacity, and a number at or above the capacity only
--             while that slot is held.
--  CAP        A slot is given only while the number of held slots is lower than the capacity.
--  FENCE      A slot is freed only with the complete id of the lease that holds it.

-- A pool is unknown if it is new, or if Redis lost one of the four keys. An unknown pool gives no slot until
-- restore.lua has filled it.
-- Every script reads its arguments before its first write, because Redis does not undo the writes of a script
-- that fails.

local core = {}

-- core.now: returns the time of Redis in ms since 1970.
function core.now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- core.text: returns the whole number n as decimal text. tostring would write a long number with an exponent.
function core.text(n)
  return string.format('%.0f', n)
end

-- core.pool: returns a table that describes the pool with these KEYS:
--  config, free, holder, lease  names of the keys KEYS[1] to KEYS[4]
--  held      number of held slots
--  capacity  number of slots; nil if the pool is unknown (Redis lost one of the four keys)
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
  -- If the sizes of the four keys do not agree, Redis lost one of the keys, and p.capacity stays nil.
  if capacity and slots >= capacity and redis.call('HLEN', p.holder) == p.held and free == slots - p.held then
    p.capacity = capacity
  end
  return p
end

-- parse_holder: parses the text that KEYS[3] stores for a slot. Returns the holder of the slot: a table with
-- the fields slot, acquired, ends, device, batch and lease.
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

-- core.holders: returns the holders of all held slots of pool p as tables of parse_holder, in no order.
function core.holders(p)
  local flat = redis.call('HGETALL', p.holder)
  local all = {}
  for i = 1, #flat, 2 do
    all[#all + 1] = parse_holder(flat[i], flat[i + 1])
  end
  return all
end

-- core.slot: returns the number of the slot that the lease holds in pool p, or nil.
function core.slot(p, lease)
  return tonumber(redis.call('HGET', p.lease, lease) or nil)
end

-- write_holder: writes r, a holder with the fields of parse_holder, to all keys of pool p. The caller must
-- have checked that no other lease holds the slot r.slot.
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

-- core.give: gives the lowest free slot of pool p to the lease r.lease, which must hold no slot. It stores the
-- slot number in r.slot and returns it. If all slots of the capacity are held, it writes nothing and returns
-- nil (invariant CAP).
function core.give(p, r)
  if p.held >= p.capacity then
    return nil
  end
  r.slot = tonumber(redis.call('ZRANGEBYSCORE', p.free, 0, 0, 'LIMIT', 0, 1)[1])
  write_holder(p, r)
  return r.slot
end

-- core.take: frees the slot that the lease holds in pool p. Returns the former holder of the slot (a table of
-- parse_holder), or nil if the lease holds no slot.
function core.take(p, lease)
  local slot = redis.call('HGET', p.lease, lease)
  if not slot then
    return nil
  end
  local r = parse_holder(slot, redis.call('HGET', p.holder, slot))
  -- HDEL must be the first write of a script that frees a slot. If the memory of Redis is full, Redis refuses
  -- HSET and ZADD as the first write of a script, but not HDEL. After the first write, it refuses nothing.
  redis.call('HDEL', p.lease, lease)
  redis.call('HDEL', p.holder, slot)
  -- After a decrease of the capacity, a slot number at or above it must not be given again (invariant RANGE).
  if r.slot < p.capacity then
    redis.call('ZADD', p.free, 0, slot)
  else
    redis.call('ZREM', p.free, slot)
  end
  p.held = p.held - 1
  return r
end

-- core.adopt: records in pool p that the lease h.lease holds the slot h.slot, because the ledger says so. If
-- the lease holds another slot, that slot is freed. If another lease holds the slot h.slot, core.adopt writes
-- nothing and returns false. Otherwise it returns true. now is the time of Redis in ms. Fields of h:
--  slot, lease, device, batch  as in parse_holder
--  age   ms since the grant
--  left  ms until the lease ends
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

-- core.configure: changes the capacity of pool p from `from` to to.capacity slots. It also stores to.version
-- and to.call. A decrease removes free slots. A held slot at or above the new capacity stays until it is freed.
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
