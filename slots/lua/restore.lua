-- restore: fills an unknown pool, in chunks; known with the last one. A known pool is never touched. The first chunk
-- clears what another
-- restore left half done, which ends that one. A chunk is applied once, in its order.
-- ARGV     1 call (the same in all chunks), capacity, version, offset (holders in earlier chunks), last, holders:
--          slot, lease, device,
--          batch, left, age
-- Returns  1 = done, go on; 0 = the pool is known, or another restore took over
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
