-- restore: fills an unknown pool, in chunks; known with the last one.
-- KEYS     the pool (pool.lua)
-- ARGV     call id (the same in all chunks), capacity, version,
--          offset (holders in earlier chunks), last (1 or 0);
--          then per holder: slot, lease, device, remaining_ms, age_ms, batch
-- Returns  1 = done, go on; 0 = the pool is known, or another restore took over
-- Keeps    a known pool is never touched. The first chunk clears what another
--          restore left half done, which ends that one. A chunk is applied once,
--          in its order: the holders so far are counted.
local id, last = ARGV[1], ARGV[5] == '1'
local capacity = integer(ARGV[2], 0, MAX_CAPACITY, 'capacity')
local version = integer(ARGV[3], 0, 2 ^ 53, 'version')
local offset = integer(ARGV[4], 0, MAX_CAPACITY, 'offset')
local holders = (#ARGV - 5) / 6
integer(holders, 0, MAX_CAPACITY, 'number of arguments')
for i = 1, holders do
  local at = 6 * i - 1
  integer(ARGV[at + 1], 0, MAX_CAPACITY - 1, 'slot')
  integer(ARGV[at + 4], -2 ^ 52, 2 ^ 52, 'remaining')
  integer(ARGV[at + 5], 0, 2 ^ 52, 'age')
  integer(ARGV[at + 6], 0, 2 ^ 53, 'batch')
end

if known() then
  return redis.call('HGET', CONFIG, 'call') == id and 1 or 0
end
local done = 0
if redis.call('HGET', CONFIG, 'restoring') == id then
  done = redis.call('HLEN', LEASE)
  if done ~= offset then return done > offset and 1 or 0 end
elseif offset == 0 then
  redis.call('DEL', unpack(KEYS))
  redis.call('HSET', CONFIG, 'restoring', id)
else
  return 0
end

local now = now_ms()
for i = 1, holders do
  local at = 6 * i - 1
  hold(slot_name(tonumber(ARGV[at + 1])), ARGV[at + 2], ARGV[at + 3], number_name(ARGV[at + 6]), '',
    math.max(now - tonumber(ARGV[at + 5]), 0), now + tonumber(ARGV[at + 4]))
end
if last then
  add_free(0, capacity)
  redis.call('HDEL', CONFIG, 'restoring')
  redis.call('HSET', CONFIG, 'capacity', text(capacity), 'version', text(version), 'call', id)
end
return 1
