-- offer: frees the slots of leases, applies what became of waiters and offers, lets devices wait that did not ask; then offers what is free.
-- ARGV     1 pace and missed (queue.start), leases, updates: kind, device, offer, batch (queue.update), joiners: device, reach, batch,
--          weight, order
-- Returns  '' for an unknown pool; else JSON: what queue.close says, and freed: the leases that held a slot
local args, p, freed = cjson.decode(ARGV[1]), core.pool(KEYS), {}
if not p.capacity then return '' end
local q = queue.start(KEYS, p, args.pace, args.missed)
for _, lease in ipairs(args.leases or {}) do
  local r = core.take(p, lease)
  if r then queue.release(q, r) end
  freed[#freed + 1] = r and lease
end
for _, u in ipairs(args.updates or {}) do queue.update(q, u) end
for _, j in ipairs(args.joiners or {}) do if not queue.waiter(q, j.device) then queue.join(q, j.device, j, j.reach, 1) end end
return queue.close(q, { freed = freed })
