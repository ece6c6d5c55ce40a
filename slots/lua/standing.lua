-- standing: where tasks of a device stand in the queue. Writes nothing.
-- ARGV     1 device, wants: batch, weight, lane, order
-- Returns  '' for an unknown pool; else JSON: capacity, held, left (queue.left), now, first (the number of a want),
--          positions, waiter; size,
--          how many wait; room (queue.room), state (queue.lua)
local args = cjson.decode(ARGV[1])
local p = core.pool(KEYS)
local positions = {}
if not p.capacity then
  return ''
end
local q = queue.open(KEYS, p)
for n, want in ipairs(args.wants) do
  positions[n] = queue.position(q, args.device, want)
end
return cjson.encode({
  capacity = p.capacity,
  held = p.held,
  left = queue.left(q),
  now = q.now,
  first = (queue.best(q, args.wants)),
  positions = positions,
  waiter = queue.waiter(q, args.device),
  size = redis.call('HLEN', q.waiter),
  room = queue.room(q),
  state = q.state,
})
