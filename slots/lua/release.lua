-- release: frees the slot of a lease, the decrement that cannot go below zero,
-- and offers what became free (handon.lua, behind this).
-- KEYS     the pool (pool.lua, line.lua, offer.lua)
-- ARGV     as line.lua has it; then lease ids
-- Returns  per lease: 1 = it held a slot and this call freed it, 0 = it held none;
--          then offers (offer.lua)
-- Keeps    only the whole lease id that holds a slot frees it. Nothing is
--          written for an unknown pool. What is noted of a release serves only
--          the answer to the same call sent again, and lasts REPLAY_MS.
local REPLAY_MS, PACE = 10000, 5

check(#ARGV > PACE, 'number of arguments')
local capacity, held = known()
local now = now_ms()
local reply = {}

local function note(tag)
  redis.call('ZREMRANGEBYSCORE', RELEASED, '-inf', text(now - REPLAY_MS))
  redis.call('ZADD', RELEASED, text(now), tag)
end

for i = PACE + 1, #ARGV do
  local lease, tag = ARGV[i], ARGV[1] .. '.' .. i
  local slot = capacity and redis.call('HGET', LEASE, lease)
  if slot then
    free(slot, lease, capacity)
    held = held - 1
    note(tag)
    reply[i - PACE] = 1
  else
    reply[i - PACE] = capacity and redis.call('ZSCORE', RELEASED, tag) and 1 or 0
  end
end
if not capacity or redis.call('ZCARD', KEYS[8]) == 0 then return reply end
