-- configure: resizes a known pool. Versions only rise; holders are left alone.
-- ARGV     1 call, version, capacity
-- Returns  1 = changed, 0 = this version or a newer one is in force, -1 = unknown pool
local args = cjson.decode(ARGV[1])
local p = core.pool(KEYS)
if not p.capacity then
  return -1
end
local current = redis.call('HMGET', p.config, 'version', 'call')
if args.version <= tonumber(current[1]) then
  return current[2] == args.call and 1 or 0
end
core.configure(p, p.capacity, args)
return 1
