-- adopt: records in a known pool the holders of slots that the ledger (the SQL database) knows. It records a
-- holder even if more slots than the capacity are then held, because the ledger has the last word.
--
-- KEYS     the ten keys of the pool, as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object:
--     holders  list of holders, each an object: slot, lease, device, batch, left, age (core.adopt)
-- Returns  an empty list if the pool is unknown; else a list with one number per holder:
--     1  the lease of the holder now holds the slot
--     0  another lease holds the slot, so nothing was written for this holder

local args = cjson.decode(ARGV[1])
local p = core.pool(KEYS)
local now = core.now()
local reply = {}
for i, h in ipairs(p.capacity and args.holders or {}) do
  reply[i] = core.adopt(p, h, now) and 1 or 0
end
return reply
