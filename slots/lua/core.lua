-- Core: decides whether a slot is given, without a clock and without the queue: with every other key lost or wrong,
-- the cap still holds.
--
-- KEYS  1 config  HASH  capacity, version, call; only "restoring" while unknown
--       2 free    ZSET  slot, its number in five digits -> 0 while it is free, 1 while it is held
--       3 holder  HASH  slot -> "acquired_ms|ends_ms|device|batch|lease"; the times are Redis TIME, and only shown
--       4 lease   HASH  lease id -> slot
--
-- Invariants of a known pool, before and after every script; the tests name them so:
--   INVERSE    holder and lease are each other's inverse
--   PARTITION  a slot has score 1 exactly while it has a holder
--   RANGE      free has every number below the capacity, and above it only held ones
--   CAP        a slot is given only while fewer are held than the capacity
--   FENCE      only the whole lease id that holds a slot frees it
-- By PARTITION and RANGE, a number below the capacity is free if there are fewer holders. A pool that lost one of
-- these keys breaks the first
-- three: it is unknown, and grants nothing until it is restored. Nothing of a script rolls back: each reads its
-- arguments first.
local core = {}

function core.now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

function core.text(n)
  return string.format('%.0f', n)
end

-- how many slots are held, and the capacity: nil while the pool is unknown
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
  if capacity and slots >= capacity and redis.call('HLEN', p.holder) == p.held and free == slots - p.held then
    p.capacity = capacity
  end
  return p
end

-- takes the record of a holder apart
local function record(slot, text)
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

function core.holders(p)
  local flat = redis.call('HGETALL', p.holder)
  local all = {}
  for i = 1, #flat, 2 do
    all[#all + 1] = record(flat[i], flat[i + 1])
  end
  return all
end

-- that it holds; nil: none
function core.slot(p, lease)
  return tonumber(redis.call('HGET', p.lease, lease) or nil)
end

-- writes a holder: of a slot that is free, or that it has already
local function hold(p, r)
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

-- gives the lowest free slot to a lease that holds none; nil: none is free
function core.give(p, r)
  if p.held >= p.capacity then
    return nil
  end
  r.slot = tonumber(redis.call('ZRANGEBYSCORE', p.free, 0, 0, 'LIMIT', 0, 1)[1])
  hold(p, r)
  return r.slot
end

-- takes the slot of a lease back, and returns its record; nil: it holds none
function core.take(p, lease)
  local slot = redis.call('HGET', p.lease, lease)
  if not slot then
    return nil
  end
  local r = record(slot, redis.call('HGET', p.holder, slot))
  -- first: it works without memory, and so does what follows it
  redis.call('HDEL', p.lease, lease)
  redis.call('HDEL', p.holder, slot)
  if r.slot < p.capacity then
    redis.call('ZADD', p.free, 0, slot)
  else
    redis.call('ZREM', p.free, slot)
  end
  p.held = p.held - 1
  return r
end

-- adopt makes a holder of the ledger the holder of its slot here, and says whether it is: it displaces no other, and
-- its lease may move.
function core.adopt(p, h, now)
  local text = redis.call('HGET', p.holder, string.format('%05d', h.slot))
  local before = core.slot(p, h.lease)
  if text and record(h.slot, text).lease ~= h.lease then
    return false
  end
  if before and before ~= h.slot then
    core.take(p, h.lease)
  end
  hold(p, {
    slot = h.slot,
    lease = h.lease,
    device = h.device,
    batch = h.batch,
    acquired = math.max(now - h.age, 0),
    ends = now + h.left,
  })
  return true
end

-- sets the capacity: the numbers that it adds are free, and the free ones above it go
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
