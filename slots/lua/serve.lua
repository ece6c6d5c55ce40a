-- serve: frees the slots of leases, applies what became of waiters, lets some join that did not ask. Then a device
-- that wants a slot for any
-- of some tasks gets one that is not offered, or waits. A lease holds one slot at most: a call that is sent again is
-- answered the same.
-- ARGV     1 pace and missed (queue.start), leases, updates: kind, device, offer, batch (queue.update), joiners:
--          device, reach, batch,
--          weight, lane, order; askers: device, reach, chance (0 to 1), wants: lease, ttl, batch, weight, lane,
--          order; state (queue.close)
-- Returns  '' for an unknown pool; else JSON: what queue.close says; freed: leases that held a slot; answers: slot
--          and want, or after and position
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
  if not w or j.lane and not w.offer then
    queue.join(q, j.device, j, j.reach, 1)
  end
end
-- by the queue, before anybody who asks
if #freed > 0 and args.askers then
  queue.offer(q)
end

local function serve(asker)
  local w = queue.waiter(q, asker.device)
  local mine = nil
  local best, before = queue.best(q, asker.wants)
  for i, want in ipairs(asker.wants) do
    local slot = core.slot(p, want.lease)
    if slot then
      return { slot = slot, want = i }
    end
    if w and w.batch .. w.order == want.batch .. want.order then
      mine = i
    end
  end
  local n = w and w.offer and (not before and mine or (before or w.kept) and best)
    or queue.left(q) > 0 and best
  local want = asker.wants[n or best]
  local r = {
    lease = want.lease,
    device = asker.device,
    batch = want.batch,
    acquired = q.now,
    ends = q.now + want.ttl,
  }
  if n and core.give(p, r) then
    queue.grant(q, asker.device, want)
    return { slot = r.slot, want = n }
  end
  local after, position = queue.join(q, asker.device, want, asker.reach, asker.chance)
  return { after = after, position = position }
end

for i, asker in ipairs(args.askers or {}) do
  answers[i] = serve(asker)
end
return queue.close(q, { freed = freed, answers = answers }, args.state)
