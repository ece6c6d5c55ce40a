-- release: frees the slot of a lease, the decrement that cannot go below zero.
-- KEYS     the pool (pool.lua)
-- ARGV     call id; then lease ids
-- Returns  per lease: 1 = it held a slot and this call freed it, 0 = it held none
-- Keeps    only the whole lease id that holds a slot frees it. Nothing is
--          written for an unknown pool. What is noted of a release serves only
--          the answer to the same call sent again, and lasts REPLAY_MS.
local REPLAY_MS = 10000

check(#ARGV > 1, 'number of arguments')
local capacity = known()
local now
local reply = {}

local function note(tag)
  if not now then
    now = now_ms()
    redis.call('ZREMRANGEBYSCORE', RELEASED, '-inf', text(now - REPLAY_MS))
  end
  redis.call('ZADD', RELEASED, text(now), tag)
end

for i = 2, #ARGV do
  local lease, tag = ARGV[i], ARGV[1] .. '.' .. i
  local slot = capacity and redis.call('HGET', LEASE, lease)
  if slot then
    free(slot, lease, capacity)
    note(tag)
    reply[i - 1] = 1
  else
    reply[i - 1] = capacity and redis.call('ZSCORE', RELEASED, tag) and 1 or 0
  end
end
return reply
