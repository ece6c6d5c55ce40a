-- adopt: writes holders from the ledger into a known pool. Afterwards more slots can be held than the
-- capacity, as after a decrease of the capacity. Then core.give gives no slot.
--
-- KEYS     as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object:
--     holders  list of objects: slot, lease, device, batch, left, age (core.adopt)
-- Returns  an empty list if the pool is unknown; else one number per holder:
--     1  the lease of the holder holds the slot now
--     0  another lease holds the slot; nothing was written for this holder

local args = cjson.decode(ARGV[1])
local p = core.pool(KEYS)
local now = core.now()
local reply = {}
for i, h in ipairs(p.capacity and args.holders or {}) do
  reply[i] = core.adopt(p, h, now) and 1 or 0
end
return reply
