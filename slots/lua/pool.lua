-- What the scripts share; it is sent in front of each of them.
--
-- KEYS   1 free_at   ZSET  slot -> 0 while free, else when its lease ends (ms)
--        2 holder    HASH  slot -> "acquired_ms|device|lease|batch:tag"
--        3 lease     HASH  lease id -> slot
--        4 config    HASH  capacity, version, call; only "restoring" while unknown
--        5 released  ZSET  tag -> when (ms): what was freed in the last seconds
--        6 batch     HASH  "h" .. batch -> how many it holds; more in line.lua
--        7 to 15     the line and its offers (line.lua)
-- 1 to 4 decide whether a slot is given; 6 to 15 only to whom first. Whatever is
-- lost of these or wrong in them can delay, never give one slot too many.
-- A slot is its number in five digits, so that equal scores sort by number.
-- Time is Redis TIME, in milliseconds. Numbers are stored as integer strings.
--
-- Invariants of a known pool, before and after every script:
--   holder and lease are each other's inverse: what is held is counted, not kept;
--   a slot has a score above 0 exactly while it has a holder;
--   free_at has every number below capacity, and above it only held ones,
--     so fewer holders than capacity means a free number below capacity.
-- A script checks its arguments before its first write: nothing rolls back.
-- A tag names one request of one call. It tells a request that is sent again,
-- because its reply was lost, from a new one: the answer is the same.
-- A batch is its number in sixteen digits.

local FREE_AT, HOLDER, LEASE, CONFIG, RELEASED, BATCH = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MAX_CAPACITY = 10000

local function check(ok, what)
  if not ok then error('slots: bad ' .. what) end
end

-- integer reads an argument within low..high.
local function integer(text, low, high, what)
  local n = tonumber(text)
  check(n and n >= low and n <= high and n == math.floor(n), what)
  return n
end

local function text(n) return string.format('%.0f', n) end

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- known returns capacity and how many are held, or nothing for an unknown pool.
-- A pool of which a key was lost (evicted, deleted) is unknown too.
local function known()
  local capacity = tonumber(redis.call('HGET', CONFIG, 'capacity') or nil)
  if not capacity then return nil end
  local held = redis.call('HLEN', LEASE)
  local members = redis.call('ZCARD', FREE_AT)
  if members < capacity or redis.call('HLEN', HOLDER) ~= held
    or redis.call('ZCOUNT', FREE_AT, 0, 0) ~= members - held then
    return nil
  end
  return capacity, held
end

local function slot_name(n) return string.format('%05d', n) end

-- number_name writes a number below 2^53 so that its order is that of its text.
local function number_name(n) return string.format('%016.0f', tonumber(n)) end

-- batch_of reads the batch of a holder's record.
local function batch_of(record) return string.match(record, '|(%d+):[^|]*$') end

-- hold gives a free slot to a lease that holds none.
local function hold(slot, lease, device, batch, tag, acquired, ends)
  redis.call('HSET', LEASE, lease, slot)
  redis.call('HSET', HOLDER, slot, text(acquired) .. '|' .. device .. '|' .. lease .. '|' .. batch .. ':' .. tag)
  redis.call('ZADD', FREE_AT, text(math.max(ends, 1)), slot)
  redis.call('HINCRBY', BATCH, 'h' .. batch, 1)
end

-- uncount notes that a batch has one place less.
local function uncount(batch)
  if batch and redis.call('HINCRBY', BATCH, 'h' .. batch, -1) < 1 then
    redis.call('HDEL', BATCH, 'h' .. batch)
  end
end

-- free takes a slot back from the lease that holds it.
local function free(slot, lease, capacity)
  local batch = batch_of(redis.call('HGET', HOLDER, slot) or '')
  redis.call('HDEL', LEASE, lease) -- first: it works without memory, and so does what follows it
  redis.call('HDEL', HOLDER, slot)
  uncount(batch)
  if tonumber(slot) < capacity then
    redis.call('ZADD', FREE_AT, 0, slot)
  else
    redis.call('ZREM', FREE_AT, slot)
  end
end

-- in_pieces calls a command with many members, below the limit of unpack.
local function in_pieces(command, key, members)
  for first = 1, #members, 1000 do
    redis.call(command, key, unpack(members, first, math.min(first + 999, #members)))
  end
end

-- add_free adds the numbers low..high-1, as free, where they are not there yet.
local function add_free(low, high)
  local args = {}
  for n = low, high - 1 do
    args[#args + 1] = 0
    args[#args + 1] = slot_name(n)
  end
  for first = 1, #args, 1000 do
    redis.call('ZADD', FREE_AT, 'NX', unpack(args, first, math.min(first + 999, #args)))
  end
end
