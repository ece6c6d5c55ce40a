-- acquire: one slot per lease, the capped increment.
-- KEYS     the pool (pool.lua)
-- ARGV     call id; then per request: lease, device, ttl_ms
-- Returns  per request: status, slot, ms until the earliest lease end (FULL; 0 = none or past)
-- Keeps    held < capacity before every grant; a lease holds at most one slot.
--          Holders whose lease ended still count: only a release frees.
local UNKNOWN, FULL, ACQUIRED, HELD = 0, 1, 2, 3

local requests = (#ARGV - 1) / 3
integer(requests, 1, MAX_CAPACITY, 'number of arguments')
local ttl = {}
for i = 1, requests do
  ttl[i] = integer(ARGV[3 * i + 1], 1, 2 ^ 52, 'ttl')
end

local capacity, held = known()
local now = now_ms()
local reply = {}

local function answer(status, slot, wait)
  reply[#reply + 1] = status
  reply[#reply + 1] = tonumber(slot)
  reply[#reply + 1] = wait
end

-- next_free is the same for all of a call: after the first FULL nothing changes.
local wait
local function next_free()
  if not wait then
    local first = redis.call('ZRANGEBYSCORE', FREE_AT, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    wait = first[2] and math.max(tonumber(first[2]) - now, 0) or 0
  end
  return wait
end

-- holds says how a lease that holds a slot came by it: by this very request
-- (sent again), or before it.
local function holds(slot, tag)
  local value = redis.call('HGET', HOLDER, slot)
  if string.sub(value, -#tag - 1) == '|' .. tag then return ACQUIRED end
  return HELD
end

for i = 1, requests do
  local lease, device, tag = ARGV[3 * i - 1], ARGV[3 * i], ARGV[1] .. '.' .. i
  local slot = capacity and redis.call('HGET', LEASE, lease)
  if not capacity then
    answer(UNKNOWN, 0, 0)
  elseif slot then
    answer(holds(slot, tag), slot, 0)
  elseif held >= capacity then
    answer(FULL, 0, next_free())
  else
    slot = redis.call('ZRANGEBYSCORE', FREE_AT, 0, 0, 'LIMIT', 0, 1)[1]
    hold(slot, lease, device, tag, now, now + ttl[i])
    held = held + 1
    answer(ACQUIRED, slot, 0)
  end
end
return reply
