-- configure: resizes a known pool.
-- KEYS     the pool (pool.lua)
-- ARGV     call id, capacity, version
-- Returns  1 = changed, 0 = this version or a newer one is in force, -1 = unknown pool
-- Keeps    versions only rise. Raising adds free numbers; lowering removes the
--          free ones at the top and leaves holders alone (release.lua removes
--          their numbers).
local to = integer(ARGV[2], 0, MAX_CAPACITY, 'capacity')
local version = integer(ARGV[3], 0, 2 ^ 53, 'version')

local from = known()
if not from then return -1 end
local current = redis.call('HMGET', CONFIG, 'version', 'call')
if version <= tonumber(current[1]) then
  return current[2] == ARGV[1] and 1 or 0
end

redis.call('HSET', CONFIG, 'capacity', text(to), 'version', text(version), 'call', ARGV[1])
add_free(from, to)
local gone = {}
for _, slot in ipairs(redis.call('ZRANGEBYSCORE', FREE_AT, 0, 0)) do
  if tonumber(slot) >= to then gone[#gone + 1] = slot end
end
in_pieces('ZREM', FREE_AT, gone)
return 1
