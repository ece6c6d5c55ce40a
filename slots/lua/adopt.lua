-- adopt: makes holders of the ledger holders here. It may exceed the capacity, as lowering that may: nothing is given
-- then.
-- ARGV     1 holders: slot, lease, device, batch, left, age
-- Returns  nothing for an unknown pool; else per holder 1 = this lease holds this slot now, 0 = another one does
local args = cjson.decode(ARGV[1])
local p = core.pool(KEYS)
local now = core.now()
local reply = {}
for i, h in ipairs(p.capacity and args.holders or {}) do
  reply[i] = core.adopt(p, h, now) and 1 or 0
end
return reply
