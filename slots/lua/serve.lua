-- serve: performs one step of a pool, in this order:
--   1. frees the slots of leases,
--   2. applies updates of waiters,
--   3. adds joiners to the queue,
--   4. serves askers: each asker gets a slot for one of its wants, or becomes a waiter,
--   5. offers the free slots that are left to waiters.
--
-- KEYS     as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object; each list may be missing:
--     pace     object: times in ms (queue.start)
--     missed   true: also return the unsent offers for parked reports (handle_timers in queue.lua)
--     leases   list of lease ids whose slots are to be freed
--     updates  list of objects: kind, device, offer, batch (queue.update)
--     joiners  list of objects: device, reach, batch, weight, lane, order
--     askers   list of objects: device, reach, chance, wants
--         chance  number from 0 to 1 that spreads the times of the next reports
--         wants   list of tasks, each an object: lease, ttl, batch, weight, lane, order
--     state    true: the reply also contains the size of the queue (queue.close)
--     The fields of joiners and wants:
--         lease   id under which the slot is held; only in wants
--         ttl     duration of the lease in ms; only in wants
--         batch   id of the batch, 16 digits
--         weight  weight of the batch, at least 1
--         lane    missing if the batch is not urgent; else the percentage of the capacity for which
--                 urgent batches have precedence
--         order   priority and task, 27 characters (queue.lua)
-- Returns  '' if the pool is unknown; else a JSON object:
--     freed    those leases that held a slot; the other leases are ignored
--     answers  one object per asker:
--         slot, want       the slot, and the index (from 1) of the want that holds the slot
--         after, position  no slot was given: ms until the next report, and place in the queue
--     and the fields of queue.close
--
-- Invariant: a lease holds at most one slot. If a call is sent again, an asker whose lease holds a
-- slot gets the same answer.

local args = cjson.decode(ARGV[1])
local p = core.pool(KEYS)
local freed = {}
local answers = {}
if not p.capacity then
  return ''
end
local q = queue.start(KEYS, p, args.pace, args.missed)
for _, lease in ipairs(args.leases or {}) do
  local r = core.take(p, lease)
  if r then
    queue.release(q, r)
    freed[#freed + 1] = lease
  end
end
for _, u in ipairs(args.updates or {}) do
  queue.update(q, u)
end
for _, j in ipairs(args.joiners or {}) do
  local w = queue.waiter(q, j.device)
  -- A device that waits already keeps its place, unless the new task is urgent and the device has
  -- no offer.
  if not w or j.lane and not w.offer then
    queue.join(q, j.device, j, j.reach, 1)
  end
end
-- The freed slots are offered to the queue before an asker can take them.
if #freed > 0 and args.askers then
  queue.offer(q)
end

-- serve: gives the asker a slot for one of its wants, or adds the asker to the queue. Returns the
-- answer: slot and want, or after and position.
local function serve(asker)
  local w = queue.waiter(q, asker.device)
  local waiting_index = nil
  local best_index, has_precedence = order.best_want(q, asker.wants)
  for i, want in ipairs(asker.wants) do
    -- The lease holds a slot already: this call is a repetition.
    local slot = core.slot(p, want.lease)
    if slot then
      return { slot = slot, want = i }
    end
    if w and w.batch .. w.order == want.batch .. want.order then
      waiting_index = i
    end
  end
  -- chosen_index is the index of the want that may take a slot, or false. A waiter with an offer
  -- takes the offered slot: for the task of the offer, or for its best task if that task is urgent or
  -- the slot is kept for a poller. Any other asker needs a slot that is neither held nor offered.
  local chosen_index = w
    and w.offer
    and (not has_precedence and waiting_index or (has_precedence or w.kept) and best_index)
    or queue.left(q) > 0 and best_index
  local want = asker.wants[chosen_index or best_index]
  local r = {
    lease = want.lease,
    device = asker.device,
    batch = want.batch,
    acquired = q.now,
    ends = q.now + want.ttl,
  }
  if chosen_index and core.give(p, r) then
    queue.grant(q, asker.device, want)
    return { slot = r.slot, want = chosen_index }
  end
  local after, position = queue.join(q, asker.device, want, asker.reach, asker.chance)
  return { after = after, position = position }
end

for i, asker in ipairs(args.askers or {}) do
  answers[i] = serve(asker)
end
return queue.close(q, { freed = freed, answers = answers }, args.state)
