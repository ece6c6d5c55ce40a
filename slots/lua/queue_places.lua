-- queue_places: returns the places that the tasks of a device have, or would have, in the queue of a pool.
-- It writes nothing.
--
-- KEYS     the ten keys of the pool, as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object:
--     device  name of the device
--     wants   list of the tasks of the device, each an object: batch, weight, lane, order (serve.lua)
-- Returns  '' if the pool is unknown; else a JSON object:
--     capacity    number of slots
--     held        number of held slots
--     unreserved  number of slots that are neither held nor offered; can be negative
--     now         time of Redis in ms
--     first       index (from 1) of the want that is first in the order of the queue (order.best_want)
--     positions   list with the position of each want; 1 is the next grant (order.position)
--     waiter      the entry of the device in the queue (the JSON object of KEYS[6] in queue.lua); missing if
--                 the device does not wait
--     size        number of devices in the queue
--     room        number of slots for which urgent batches still have precedence (order.urgent_room)
--     state       state of the queue ("pool" in KEYS[8] in queue.lua and batch_order.lua)

local args = cjson.decode(ARGV[1])
local p = core.pool(KEYS)
local positions = {}
if not p.capacity then
  return ''
end
local q = queue.open(KEYS, p)
for n, want in ipairs(args.wants) do
  positions[n] = order.position(q, args.device, want)
end
return cjson.encode({
  capacity = p.capacity,
  held = p.held,
  unreserved = queue.unreserved_slots(q),
  now = q.now,
  -- order.best_want returns two values. The parentheses keep only the first, the index.
  first = (order.best_want(q, args.wants)),
  positions = positions,
  waiter = queue.waiter(q, args.device),
  size = redis.call('HLEN', q.waiter),
  room = order.urgent_room(q),
  state = q.state,
})
