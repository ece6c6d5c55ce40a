-- snapshot: everything about a pool at one instant. Writes nothing.
-- Returns  '' for an unknown pool; else JSON: capacity, version, now, leases: slot, acquired, ends, device, batch,
--          lease; offers: waiters
--          (queue.lua)
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
