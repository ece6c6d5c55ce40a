-- restore: makes an unknown pool known. The caller sends the holders in chunks, and the pool becomes
-- known with the last chunk.
--
-- KEYS     as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object:
--     call      id of the restore; the same id in all chunks
--     capacity  number of slots
--     version   version of the capacity
--     offset    number of holders in the earlier chunks; 0 in the first chunk
--     last      true in the last chunk
--     holders   list of objects: slot, lease, device, batch, left, age (core.adopt)
-- Returns   1  the chunk is applied, by this call or by an earlier sending; send the next chunk
--           0  another call made the pool known, or another restore has started
--
-- Invariants: a known pool is never changed. The first chunk deletes all keys of the pool, which ends
-- an unfinished restore of another caller. Each chunk is applied once, in the order of the chunks.

local args = cjson.decode(ARGV[1])
local p = core.pool(KEYS)
local now = core.now()
if p.capacity then
  return redis.call('HGET', p.config, 'call') == args.call and 1 or 0
end
if redis.call('HGET', p.config, 'restoring') ~= args.call then
  if args.offset > 0 then
    return 0
  end
  redis.call('DEL', unpack(KEYS))
  redis.call('HSET', p.config, 'restoring', args.call)
-- A chunk that was applied already, or a chunk whose predecessor is missing.
elseif p.held ~= args.offset then
  return p.held > args.offset and 1 or 0
end
for _, h in ipairs(args.holders or {}) do
  core.adopt(p, h, now)
end
if args.last then
  redis.call('HDEL', p.config, 'restoring')
  core.configure(p, 0, args)
end
return 1
