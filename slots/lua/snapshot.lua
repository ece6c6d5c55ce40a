-- snapshot: everything about a pool at one instant. Writes nothing.
-- KEYS     the pool (pool.lua)
-- ARGV     none
-- Returns  nothing for an unknown pool; else capacity, version, now_ms, then
--          per held slot, in no order: slot, remaining_ms, holder, and per
--          place that is reserved: -1, ms left, its member of the line
--          (version and now_ms as strings)
local capacity = known()
if not capacity then return {} end
local now = now_ms()
local reply = { capacity, redis.call('HGET', CONFIG, 'version'), text(now) }
local held = redis.call('ZRANGEBYSCORE', FREE_AT, '(0', '+inf', 'WITHSCORES')
for i = 1, #held, 2 do
  reply[#reply + 1] = tonumber(held[i])
  reply[#reply + 1] = tonumber(held[i + 1]) - now
  reply[#reply + 1] = redis.call('HGET', HOLDER, held[i])
end
local offers = redis.call('ZRANGE', KEYS[11], 0, -1, 'WITHSCORES')
for i = 1, #offers, 2 do
  local member = string.match(redis.call('HGET', KEYS[12], offers[i]) or '', '^%d+|%d+|(.*)$')
  reply[#reply + 1] = -1
  reply[#reply + 1] = tonumber(offers[i + 1]) - now
  reply[#reply + 1] = member or ''
end
return reply
