-- acquire: a slot for a device that wants one for any of some tasks; else it waits. A lease holds at most one slot, so a call that is sent
-- again is answered the same. Holders whose lease ended still count.
-- ARGV     1 pace (queue.start), askers: device, reach, chance (0 to 1), wants: lease, ttl, batch, weight, order
-- Returns  '' for an unknown pool; else JSON: what queue.close says, and answers: slot and want (its number), or after (ms) and position
local args, p, answers = cjson.decode(ARGV[1]), core.pool(KEYS), {}
if not p.capacity then return '' end
local q = queue.start(KEYS, p, args.pace)
local function serve(asker)
  local w, best, mine = queue.waiter(q, asker.device), queue.best(q, asker.wants), nil
  for i, want in ipairs(asker.wants) do
    local slot = core.slot(p, want.lease)
    if slot then return { slot = slot, want = i } end
    if w and w.batch .. w.order == want.batch .. want.order then mine = i end
  end
  local n = w and w.offer and (mine or w.kept and best) or queue.left(q) > 0 and best
  local want = asker.wants[n or best]
  local r = { lease = want.lease, device = asker.device, batch = want.batch, acquired = q.now, ends = q.now + want.ttl }
  if n and core.give(p, r) then
    queue.grant(q, asker.device, want)
    return { slot = r.slot, want = n }
  end
  local after, position = queue.join(q, asker.device, want, asker.reach, asker.chance)
  return { after = after, position = position }
end
for i, asker in ipairs(args.askers) do answers[i] = serve(asker) end
return queue.close(q, { answers = answers })
