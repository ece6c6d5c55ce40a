-- serve: changes a pool in one atomic step, in this order:
--   1. It frees the slots that the given leases hold.
--   2. It applies updates of waiters (devices that wait in the queue of the pool).
--   3. It adds joiners to the queue: devices that wait although they have not asked for a slot.
--   4. It serves askers (devices that ask for a slot): each asker gets a slot for one of its wants (tasks
--      that need a slot), or becomes a waiter.
--   5. It offers the slots that are still free to waiters. If step 1 freed slots, it also does so before step 4.
--
-- KEYS     the ten keys of the pool, as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object; each list may be missing:
--     pace     object with times in ms: hold, soonest, period, sleep, offer (queue.start)
--     missed   if true, the unsent offers for parked reports are returned again (handle_timers in
--              queue.lua)
--     leases   list of lease ids whose slots are to be freed
--     updates  list of updates of waiters, each an object: kind, device, offer, batch (queue.update)
--     joiners  list of joiners, each an object: device, reach, batch, weight, lane, order
--     askers   list of askers, each an object: device, reach, chance, wants
--         chance  number from 0 to 1; it makes the next report times of several devices different
--         wants   list of tasks, each an object: lease, ttl, batch, weight, lane, order
--     state    if true, the reply also contains the size of the queue (queue.close)
--     The fields of joiners, askers and wants:
--         reach   way to notify the device: 0 none (it polls), 1 push, 2 parked report (a report that a
--                 replica answers later)
--         lease   id under which the slot will be held; only in wants
--         ttl     duration of the lease in ms; only in wants
--         batch   id of the batch, 16 digits
--         weight  weight of the batch, at least 1
--         lane    missing if the batch is not urgent; else the percentage of the capacity for which
--                 urgent batches have precedence
--         order   text that sorts the tasks of a batch: priority and task id, 27 characters (queue.lua)
-- Returns  '' if the pool is unknown; else a JSON object:
--     freed    list of those ids in leases whose lease held a slot; all other ids are ignored
--     answers  list with one object per asker. The object has two of these fields:
--         slot, want       if the asker got a slot: the slot number, and the index (from 1) of the want
--                          for which the slot is held
--         after, position  if the asker got no slot: ms until its next report, and its place in the queue
--     and the fields that queue.close adds
--
-- Invariant: a lease holds at most one slot. If the same call is sent again, a device whose lease already
-- holds a slot gets the same answer.

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
  -- A joiner that waits already keeps its place, except in two cases in which it has no offer:
  --  The new task is urgent.
  --  The joiner missed an offer or is away, and the new task is newer than the task with which it waits. The
  --  device may have finished the older task.
  -- So a device that is gone misses at most one offer per task, except urgent tasks: it is offered slots for them
  -- until the dispatcher counts it as silent.
  if w and w.batch == j.batch then
    order.set_closed(q, order.load_batch(q, j.batch, j), false)
  end
  local missed = w and w.class == 'P' and w.reach > 0
  if not w or not w.offer and (j.lane or missed and string.sub(j.order, 12) > string.sub(w.order, 12)) then
    queue.join(q, j.device, j, j.reach, 1)
  end
end
-- The freed slots are offered to waiters first. Otherwise the askers of this call would take them.
if #freed > 0 and args.askers then
  queue.offer(q)
end

-- serve: gives the asker a slot for one of its wants, or adds its device to the queue. Returns the answer
-- (see the head of this file).
local function serve(asker)
  local w = queue.waiter(q, asker.device)
  local waiting_index = nil
  local best_index, has_precedence = order.best_want(q, asker.wants)
  for i, want in ipairs(asker.wants) do
    -- If the lease already holds a slot, the same call was sent before, and must get the same answer again.
    local slot = core.slot(p, want.lease)
    if slot then
      return { slot = slot, want = i }
    end
    if w and w.batch .. w.order == want.batch .. want.order then
      waiting_index = i
    end
  end
  -- Index of the want that may take a slot; false or nil if none may. An asker with an offer takes the offered
  -- slot for the task with which it waits. It takes the slot for its best want instead if that is urgent and
  -- has precedence, or if the offer is a kept slot and the asker no longer asks for the task with which it
  -- waits. In all other cases, an asker may only take a slot that is neither held nor offered.
  local chosen_index = w
    and w.offer
    and (not has_precedence and waiting_index or (has_precedence or w.kept) and best_index)
    or queue.unreserved_slots(q) > 0 and best_index
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
