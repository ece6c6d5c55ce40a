-- snapshot: returns all holders of slots and all offers (slots that are reserved for waiting devices) of a
-- pool at one instant. It writes nothing.
--
-- KEYS     the ten keys of the pool, as in core.lua, batch_order.lua and queue.lua
-- ARGV     not used
-- Returns  '' if the pool is unknown; else a JSON object:
--     capacity  number of slots
--     version   version of the capacity, as text
--     now       time of Redis in ms
--     leases    list of the holders of slots: slot, acquired, ends, device, batch, lease (core.lua)
--     offers    list of the waiting devices that have an offer, including the polling devices for which a
--               slot is kept (the JSON objects of KEYS[6] in queue.lua)

local p = core.pool(KEYS)
if not p.capacity then
  return ''
end
local q = queue.open(KEYS, p)
local version = redis.call('HGET', p.config, 'version')
return cjson.encode({
  capacity = p.capacity,
  version = version,
  now = q.now,
  leases = core.holders(p),
  offers = queue.waiters(q, -1, 'O'),
})
