-- configure: changes the capacity of a known pool.
--
-- KEYS     as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object:
--     call      id of this call; the same id if the call is sent again
--     version   version of the capacity
--     capacity  new number of slots
-- Returns   1  the capacity was changed, by this call or by an earlier sending of this call
--           0  the pool already has this version or a newer version
--          -1  the pool is unknown
--
-- Invariants: the version of a pool only increases. No holder is removed.

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
