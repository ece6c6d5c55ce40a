-- restore: fills an unknown pool with the holders of slots that the ledger (the SQL database) knows. A pool
-- is unknown if it is new or if Redis lost one of its keys. The caller sends the holders in chunks, one chunk
-- per call. With the last chunk, the pool becomes known.
--
-- KEYS     the ten keys of the pool, as in core.lua, batch_order.lua and queue.lua
-- ARGV[1]  JSON object:
--     call      id of the restore; all its chunks have the same id
--     capacity  number of slots of the pool
--     version   version of the capacity
--     offset    number of holders in the earlier chunks; 0 in the first chunk
--     last      true in the last chunk
--     holders   list of holders, each an object: slot, lease, device, batch, left, age (core.adopt)
-- Returns   1  the chunk is applied, either now or when it was sent before; send the next chunk
--           0  the caller must stop: another call made the pool known, or another restore has started
--
-- Invariants:
--   A known pool is never changed.
--   The first chunk deletes all keys of the pool, which ends an unfinished restore of another caller.
--   Each chunk is applied once, in the order of the chunks.

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
-- If p.held is more than args.offset, this chunk was applied before. If p.held is less, an earlier chunk is
-- missing.
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
