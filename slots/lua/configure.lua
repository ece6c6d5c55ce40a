-- configure: changes the capacity (the number of slots) of a known pool.
--
-- KEYS     the ten keys of the pool, as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object:
--     call      id of this call; if the call is sent again, it has the same id
--     version   version of the capacity
--     capacity  new number of slots
-- Returns   1  the capacity was changed, either now or when this call was sent before
--           0  the pool already has this version of the capacity or a newer one; nothing was changed
--          -1  the pool is unknown; nothing was changed
--
-- Invariants:
--   The version of the capacity of a pool only increases.
--   A holder keeps its slot even if the slot number is at or above the new capacity.

local args = cjson.decode(ARGV[1])
local p = core.pool(KEYS)
if not p.capacity then
  return -1
end
local current = redis.call('HMGET', p.config, 'version', 'call')
if args.version <= tonumber(current[1]) then
  return current[2] == args.call and 1 or 0
end
core.configure(p, p.capacity, args)
return 1
