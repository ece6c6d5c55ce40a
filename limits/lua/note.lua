-- note: what was refused, as replicas counted it.
-- KEYS     1, 2 top  ZSET  label -> how often, of even and odd hours
--          3 hour    the hour of the latest refusal
-- ARGV     how many labels are kept; then label, how often, ...
-- Keeps    of more labels than are kept the rarest makes way, and its number is taken
--          over: a number is never too low.
local most = tonumber(ARGV[1])
if not most then
  error('limits: bad number')
end
local hour = math.floor(tonumber(redis.call('TIME')[1]) / 3600)
local last = tonumber(redis.call('GET', KEYS[3]) or nil)
local top = KEYS[1 + hour % 2]
if last ~= hour then
  redis.call('DEL', top)
  if last ~= hour - 1 then
    redis.call('DEL', KEYS[2 - hour % 2])
  end
  redis.call('SET', KEYS[3], hour, 'PX', 7200000)
end
for i = 2, #ARGV, 2 do
  local taken = 0
  if redis.call('ZCARD', top) >= most and not redis.call('ZSCORE', top, ARGV[i]) then
    taken = tonumber(redis.call('ZPOPMIN', top)[2])
  end
  redis.call('ZINCRBY', top, string.format('%.0f', taken + ARGV[i + 1]), ARGV[i])
end
redis.call('PEXPIRE', top, 7200000)
return 1
